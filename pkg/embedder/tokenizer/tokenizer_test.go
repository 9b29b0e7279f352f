package tokenizer_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/embedder/embedtest"
	"github.com/agentformation/service/pkg/embedder/tokenizer"
)

// made is the tokenizer of the test models, and its words by id.
func made(t *testing.T) (*tokenizer.Tokenizer, map[int64]string) {
	t.Helper()
	tok, err := tokenizer.Parse(embedtest.Tokenizer())
	if err != nil {
		t.Fatal(err)
	}
	words := map[int64]string{}
	for w, id := range embedtest.Vocabulary() {
		words[int64(id)] = w
	}
	return tok, words
}

func spell(ids []int64, words map[int64]string) string {
	var out []string
	for _, id := range ids {
		out = append(out, words[id])
	}
	return strings.Join(out, " ")
}

func TestEncode_WordPieceAsBERTDoes(t *testing.T) {
	t.Parallel()
	tok, words := made(t)
	tests := map[string]string{
		"":                              "[CLS] [SEP]",
		" \t\n ":                        "[CLS] [SEP]",
		"The cat sat.":                  "[CLS] the cat sat . [SEP]",
		"the cat sat!?":                 "[CLS] the cat sat ! ? [SEP]",
		"cats running":                  "[CLS] cat ##s run ##n ##ing [SEP]",
		"CAFÉ café cafe\u0301":          "[CLS] cafe cafe cafe [SEP]", // accents go with upper case
		"hello\u00a0world\u3000sun":     "[CLS] hello world sun [SEP]",
		"he\u200bl\u0000lo wor\ufffdld": "[CLS] hello world [SEP]",
		"中文cat":                         "[CLS] 中 文 cat [SEP]",
		"\u4e01":                        "[CLS] [UNK] [SEP]",
		"cat$":                          "[CLS] cat [UNK] [SEP]",
		"cat_dog-fox":                   "[CLS] cat _ dog - fox [SEP]",
		"[MASK]cat [SEP]":               "[CLS] [MASK] cat [SEP] [SEP]",
		"[mask]":                        "[CLS] [UNK] m ##a ##s ##k [UNK] [SEP]",
		strings.Repeat("a", 100):        "[CLS] a" + strings.Repeat(" ##a", 99) + " [SEP]",
		strings.Repeat("a", 101):        "[CLS] [UNK] [SEP]",
		"bad \xff\xfe bytes":            "[CLS] b ##a ##d b ##y ##t ##e ##s [SEP]",
	}
	// "runs" is a word; "run" is not, so it is spelled.
	tests["cats running"] = "[CLS] cat ##s r ##u ##n ##n ##ing [SEP]"
	for text, want := range tests {
		got := tok.Encode(text, 512)
		if diff := cmp.Diff(want, spell(got.IDs, words)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
		if len(got.IDs) != len(got.Types) || got.Cut {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestEncode_AgreesWithThePlainSpelling(t *testing.T) {
	t.Parallel()
	tok, _ := made(t)
	for _, text := range []string{"the quick brown fox jumps over the lazy dog", "zzz unknown words are spelled", "x"} {
		var got []int
		for _, id := range tok.Encode(text, 512).IDs {
			got = append(got, int(id))
		}
		if diff := cmp.Diff(embedtest.IDs(text), got); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestEncode_CutsTheTextAndKeepsItsFrame(t *testing.T) {
	t.Parallel()
	tok, words := made(t)
	got := tok.Encode(strings.Repeat("cat dog ", 100), 6)
	if want := "[CLS] cat dog cat dog [SEP]"; spell(got.IDs, words) != want || !got.Cut {
		t.Errorf("got %q, cut %v", spell(got.IDs, words), got.Cut)
	}
	if got := tok.Encode("cat dog cat dog", 6); got.Cut {
		t.Error("a text that just fits was cut")
	}
}

// variant is the made tokenizer.json with one part exchanged.
func variant(t *testing.T, part string, value any) []byte {
	t.Helper()
	var f map[string]any
	if err := json.Unmarshal(embedtest.Tokenizer(), &f); err != nil {
		t.Fatal(err)
	}
	f[part] = value
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type object = map[string]any

func TestParse_RefusesWhatItWouldGetWrong(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		data  []byte
		words string
	}{
		"no JSON":             {[]byte("{"), "tokenizer.json"},
		"byte-pair":           {variant(t, "model", object{"type": "BPE"}), `model: "BPE" is not supported; known are WordPiece and Unigram`},
		"no model":            {variant(t, "model", nil), "model: there is none"},
		"no unknown token":    {variant(t, "model", object{"type": "WordPiece", "vocab": object{"a": 1}}), `"[UNK]"`},
		"negative id":         {variant(t, "model", object{"type": "WordPiece", "vocab": object{"[UNK]": 0, "a": -1}}), "-1"},
		"byte level":          {variant(t, "pre_tokenizer", object{"type": "ByteLevel"}), "pre_tokenizer"},
		"unknown normalizer":  {variant(t, "normalizer", object{"type": "Nmt"}), "normalizer"},
		"within a sequence":   {variant(t, "normalizer", object{"type": "Sequence", "normalizers": []object{{"type": "Nmt"}}}), "Nmt"},
		"bad expression":      {variant(t, "normalizer", object{"type": "Replace", "pattern": object{"Regex": "("}, "content": ""}), "replace"},
		"bad table":           {variant(t, "normalizer", object{"type": "Precompiled", "precompiled_charsmap": "AAAA"}), "precompiled_charsmap"},
		"template of nothing": {variant(t, "post_processor", object{"type": "TemplateProcessing", "single": []object{}}), "once"},
		"template names none": {variant(t, "post_processor", object{
			"type": "TemplateProcessing", "single": []object{{"SpecialToken": object{"id": "[X]"}}, {"Sequence": object{"id": "A"}}},
		}), `"[X]"`},
		"unigram without unknown": {variant(t, "model", object{"type": "Unigram", "vocab": [][]any{{"a", -1}}}), "unk_id"},
		"unigram without pairs":   {variant(t, "model", object{"type": "Unigram", "unk_id": 0, "vocab": [][]any{{"a"}}}), "vocab"},
	}
	for name, tt := range tests {
		if _, err := tokenizer.Parse(tt.data); err == nil || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: got %v, want %q", name, err, tt.words)
		}
	}
}

// charsMap compiles one replacement of a single byte, as SentencePiece lays
// it out: the root, the unit of the byte, the leaf.
func charsMap(from byte, to string) string {
	units := make([]uint32, 256+2)
	units[0] = 1 << 10 // children of the root lie at 1^byte
	node := 1 ^ uint32(from)
	leaf := uint32(len(units) - 1)
	units[node] = uint32(from) | 1<<8 | (node^leaf)<<10
	units[leaf] = 1 << 31
	data := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, u := range units {
		data = binary.LittleEndian.AppendUint32(data, u)
	}
	return base64.StdEncoding.EncodeToString(append(data, to+"\x00"...))
}

// sentencePiece is a tokenizer of the family of the multilingual models.
func sentencePiece(t *testing.T, vocab [][]any, bytes bool) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Parse(encode(t, object{
		"added_tokens": []object{{"id": 3, "content": "<mask>", "lstrip": true}},
		"normalizer": object{"type": "Sequence", "normalizers": []object{
			{"type": "Precompiled", "precompiled_charsmap": charsMap('~', "-")},
			{"type": "Replace", "pattern": object{"Regex": " {2,}"}, "content": " "},
		}},
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{
			{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "add_prefix_space": true},
		}},
		"post_processor": object{
			"type":   "TemplateProcessing",
			"single": []object{{"SpecialToken": object{"id": "<s>"}}, {"Sequence": object{"id": "A"}}, {"SpecialToken": object{"id": "</s>"}}},
			"special_tokens": object{
				"<s>": object{"ids": []int{0}}, "</s>": object{"ids": []int{1}},
			},
		},
		"model": object{"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": bytes},
	}))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEncode_UnigramTakesTheLikeliestPieces(t *testing.T) {
	t.Parallel()
	vocab := [][]any{
		{"<s>", 0},
		{"</s>", 0},
		{"<unk>", 0},
		{"<mask>", 0},
		{"▁", -3},
		{"▁un", -4},
		{"▁unbe", -8},
		{"believ", -5},
		{"liev", -9},
		{"able", -2},
		{"a", -6},
		{"b", -6},
		{"-", -5},
		{"▁a", -4},
	}
	words := map[int64]string{}
	for i, p := range vocab {
		words[int64(i)] = p[0].(string)
	}
	tok := sentencePiece(t, vocab, false)
	tests := map[string]string{
		"unbelievable":     "<s> ▁un believ able </s>", // not the longest first piece
		"a  b":             "<s> ▁a ▁ b </s>",
		"a~b":              "<s> ▁a - b </s>",
		"axyb":             "<s> ▁a <unk> b </s>", // unknown characters in a row are one
		"a <mask>b":        "<s> ▁a <mask> ▁ b </s>",
		"\u00e9\u0301able": "<s> ▁ <unk> able </s>",
	}
	for text, want := range tests {
		if got := spell(tok.Encode(text, 64).IDs, words); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestEncode_UnigramFallsBackToBytes(t *testing.T) {
	t.Parallel()
	vocab := [][]any{{"<s>", 0}, {"</s>", 0}, {"<unk>", 0}, {"<mask>", 0}, {"▁", -1}}
	for b := range 256 {
		vocab = append(vocab, []any{"<0x" + strings.ToUpper(hex(b)) + ">", -9})
	}
	got := sentencePiece(t, vocab, true).Encode("é", 64).IDs
	if diff := cmp.Diff([]int64{0, 4, 5 + 0xC3, 5 + 0xA9, 1}, got); diff != "" {
		t.Error(diff)
	}
}

func hex(b int) string { const d = "0123456789abcdef"; return string([]byte{d[b>>4], d[b&15]}) }

func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "The cat", "CAFÉ 中文", "[MASK][SEP]", "\xff\x00\u200b", "<mask> ~~ é"} {
		f.Add(s, 8)
	}
	bert, err := tokenizer.Parse(embedtest.Tokenizer())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		vocab := [][]any{{"<s>", 0}, {"</s>", 0}, {"<unk>", 0}, {"<mask>", 0}, {"▁", -3}, {"a", -2}, {"é", -2}}
		for _, tok := range []*tokenizer.Tokenizer{bert, sentencePiece(t, vocab, false)} {
			most := max(3+max(limit, -limit)%100, 3)
			got := tok.Encode(text, most)
			if len(got.IDs) > most || len(got.IDs) < tok.Specials() || len(got.Types) != len(got.IDs) {
				t.Fatalf("%d tokens of at most %d: %+v", len(got.IDs), most, got)
			}
			for _, id := range got.IDs {
				if id < 0 || int(id) >= tok.Size() {
					t.Fatalf("token %d of %d", id, tok.Size())
				}
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(embedtest.Tokenizer())
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",1]]},"normalizer":{"type":"Precompiled","precompiled_charsmap":"` + charsMap('~', "-") + `"}}`))
	f.Add([]byte(`{"model":{"type":"WordPiece","vocab":{"[UNK]":0}},"pre_tokenizer":{"type":"Metaspace"},"post_processor":{"type":"BertProcessing","sep":["x",1],"cls":["y",2]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := tokenizer.Parse(data)
		if err != nil {
			return
		}
		e := tok.Encode("The cat ~ é 中 [MASK]", tok.Specials()+10)
		if len(e.IDs) > tok.Specials()+10 {
			t.Errorf("%d tokens", len(e.IDs))
		}
	})
}
