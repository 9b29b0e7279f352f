package embedder_test

import (
	"encoding/base64"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/embedder"
)

func TestResponse_ReadsBackWhatWasPacked(t *testing.T) {
	t.Parallel()
	want := [][]float32{{1, -2.5, math.MaxFloat32}, {0, math.SmallestNonzeroFloat32, 3}}
	got, err := embedder.Pack(want, 3, 7).Unpack(2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, n := range []int{1, 3} {
		if _, err := embedder.Pack(want, 3, 7).Unpack(n); err == nil {
			t.Errorf("%d vectors were read out of 2", n)
		}
	}
}

func FuzzResponse(f *testing.F) {
	f.Add(embedder.Pack([][]float32{{1, 2}}, 2, 1).Vectors, 2, 1)
	f.Add("AAAA", 1, 1)
	f.Add("", 0, 0)
	f.Fuzz(func(t *testing.T, vectors string, dimension, n int) {
		if n < 0 || n > embedder.MaxTexts { // the client's own number
			return
		}
		got, err := embedder.Response{Dimension: dimension, Vectors: vectors}.Unpack(n)
		if err != nil {
			return
		}
		raw, err := base64.StdEncoding.DecodeString(vectors)
		if err != nil || len(got) != n || len(raw) != 4*n*dimension {
			t.Errorf("%d vectors of %d out of %d bytes", len(got), dimension, len(raw))
		}
	})
}

func TestParseUIDRange_ReadsBack(t *testing.T) {
	t.Parallel()
	for _, want := range []embedder.UIDRange{{100, 199}, {0, math.MaxUint32}} {
		if got, err := embedder.ParseUIDRange(want.String()); err != nil || got != want {
			t.Errorf("%v: %v, %v", want, got, err)
		}
	}
	for _, bad := range []string{"", "1", "a-b", "2-1", "1-4294967296", "-1-2"} {
		if got, err := embedder.ParseUIDRange(bad); err == nil {
			t.Errorf("%q was taken as %v", bad, got)
		}
	}
}
