package limits

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPolicy_OwnLimitsReplaceTheDefaultAndTheCapHolds(t *testing.T) {
	t.Parallel()
	p := Policy{
		Default: Limits{Memory: 512 << 20, CPU: 1, Pids: 200},
		ByID: map[string]Limits{
			"big":    {Memory: 8 << 30, Files: 4096},
			"second": {CPU: 0.5, Pids: 100, Disk: 1 << 30},
		},
		MaxMemory: 2 << 30,
	}
	for id, want := range map[string]Limits{
		"other":  {Memory: 512 << 20, CPU: 1, Pids: 200},
		"big":    {Memory: 2 << 30, CPU: 1, Pids: 200, Files: 4096},
		"second": {Memory: 512 << 20, CPU: 0.5, Pids: 100, Disk: 1 << 30},
	} {
		if diff := cmp.Diff(want, p.For(id)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", id, diff)
		}
	}
	if got := (Policy{MaxMemory: 1 << 30}).For("any").Memory; got != 1<<30 {
		t.Errorf("without a limit of its own it may take %d", got)
	}
}

func TestCheck_RefusesLimitsThatNothingRunsUnder(t *testing.T) {
	t.Parallel()
	for want, l := range map[string]Limits{
		"memory:": {Memory: 1 << 20},
		"cpu:":    {CPU: 0.001},
		"pids:":   {Pids: 4},
		"files:":  {Files: 10},
		"disk:":   {Disk: 1},
	} {
		if err := l.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, cpu := range []float64{math.NaN(), math.Inf(1), -1} {
		if err := (Limits{CPU: cpu}).Check(); err == nil {
			t.Errorf("%v processors are taken", cpu)
		}
	}
	for _, l := range []Limits{{}, {Memory: 64 << 20, CPU: 0.5, Pids: 64, Files: 256, Disk: 1 << 30}} {
		if err := l.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestParseUserRange(t *testing.T) {
	t.Parallel()
	r, err := ParseUserRange(" 200000 - 200999 ")
	if err != nil {
		t.Fatal(err)
	}
	if r.String() != "200000-200999" {
		t.Errorf("read %s", r)
	}
	for index, want := range map[int]int{0: 200000, 999: 200999, -1: -1, 1000: -1} {
		if got, err := r.UID(index); got != want || (err != nil) != (want < 0) {
			t.Errorf("user %d is %d, %v", index, got, err)
		}
	}
	for _, text := range []string{"", "200000", "5-10", "200999-200000", "0-4294967295", "-1-5", "a-b", "200000-99999999999"} {
		if got, err := ParseUserRange(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}

func TestParseCPU(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"2": 2, "1.5": 1.5, "500m": 0.5, "0": 0} {
		if got, err := ParseCPU(" " + text + "\t"); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "m", "two", "-1", "NaN", "Inf", "1,5"} {
		if got, err := ParseCPU(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 512 << 20: "512 MiB", 1288490189: "1.2 GiB", math.MaxInt64: "8 EiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("200000-200999")
	f.Add("1.5")
	f.Add("500m")
	f.Fuzz(func(t *testing.T, text string) {
		if r, err := ParseUserRange(text); err == nil {
			if again, err := ParseUserRange(r.String()); err != nil || *again != *r {
				t.Errorf("%q: %v, %v", text, again, err)
			}
		}
		if v, err := ParseCPU(text); err == nil && (v < 0 || math.IsNaN(v) || math.IsInf(v, 0)) {
			t.Errorf("%q is %v", text, v)
		}
	})
}
