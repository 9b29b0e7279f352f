package tokenizer_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/embedder/tokenizer"
)

// hostile is a tokenizer with a normalizer that nobody would train with.
func hostile(t *testing.T, normalizer any) (*tokenizer.Tokenizer, error) {
	t.Helper()
	return tokenizer.Parse(encode(t, object{
		"normalizer": normalizer,
		"model":      object{"type": "Unigram", "unk_id": 0, "vocab": [][]any{{"<unk>", 0}, {"a", -1}, {"\ufffd", -1}}},
	}))
}

func TestEncode_ATableThatMakesNoTextIsNoHarm(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"\xff", "\xe2\x96", "\x96"} {
		table := object{"type": "Precompiled", "precompiled_charsmap": charsMap('w', to)}
		for _, n := range []any{table, object{"type": "Sequence", "normalizers": []any{table, table}}} {
			tok, err := hostile(t, n)
			if err != nil {
				continue // which is as good
			}
			for _, text := range []string{"w", "aw", "word", "wwwwwww w"} {
				if got := tok.Encode(text, 64); len(got.IDs) == 0 {
					t.Errorf("%q makes %q: %q has no tokens", "w", to, text)
				}
			}
		}
	}
}

// It runs alone: what is counted is the memory that the whole process takes.
func TestEncode_NoNormalizerTakesMoreMemoryThanItsText(t *testing.T) {
	replace := func(from, to string) object {
		return object{"type": "Replace", "pattern": object{"String": from}, "content": to}
	}
	var doubling []any
	for range 16 {
		doubling = append(doubling, replace("a", "aa"))
	}
	tests := map[string]any{
		"a long replacement": replace("a", strings.Repeat("b", 4096)),
		"a long prefix":      object{"type": "Prepend", "prepend": strings.Repeat("a", 1<<20)},
		"a long table entry": object{"type": "Precompiled", "precompiled_charsmap": charsMap('a', strings.Repeat("b", 4096))},
		"many small ones":    object{"type": "Sequence", "normalizers": doubling},
	}
	text := strings.Repeat("a", 16<<10)
	for name, normalizer := range tests {
		tok, err := hostile(t, normalizer)
		if err != nil {
			continue
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tok.Encode(text, 64)
		runtime.ReadMemStats(&after)
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 200 {
			t.Errorf("%s: 16 KiB of text took %d MiB", name, used)
		}
	}
}

func TestParse_RefusesASequenceThatIsDeeperThanAnyIs(t *testing.T) {
	t.Parallel()
	deep := func(key string) string {
		const levels = 3000
		return strings.Repeat(`{"type":"Sequence","`+key+`":[`, levels) + `{"type":"NFC"}` + strings.Repeat(`]}`, levels)
	}
	for part, key := range map[string]string{"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"} {
		_, err := tokenizer.Parse([]byte(`{"` + part + `":` + deep(key) + `,"model":{"type":"Unigram","unk_id":0,"vocab":[["a",1]]}}`))
		if err == nil || !strings.Contains(err.Error(), "deep") {
			t.Errorf("%s: got %.200v", part, err)
		}
	}
}

func TestParse_RefusesPiecesThatNoTextIsCutInto(t *testing.T) {
	t.Parallel()
	_, err := tokenizer.Parse(encode(t, object{
		"model": object{"type": "Unigram", "unk_id": 0, "vocab": [][]any{{"<unk>", 0}, {strings.Repeat("a", 1<<16), -1}}},
	}))
	if err == nil || !strings.Contains(err.Error(), "65536 bytes") {
		t.Errorf("got %v", err)
	}
}
