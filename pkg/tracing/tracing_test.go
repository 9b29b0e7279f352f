package tracing

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if v, ok := vars[name]; ok {
			return v, true
		}
		return "1", false // as a lookup may: what is not found has no value
	}
}

func TestOpen_IsWhatTheEnvironmentAsksFor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env   map[string]string
		on    bool
		fault string
	}{
		"nothing":      {},
		"endpoint":     {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, on: true},
		"its own":      {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/x"}, on: true},
		"asked":        {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, on: true},
		"empty":        {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "", "OTEL_TRACES_EXPORTER": ""}},
		"none":         {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}},
		"disabled":     {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		"another kind": {env: map[string]string{"OTEL_TRACES_EXPORTER": "zipkin"}, fault: `"zipkin", want otlp or none`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr, err := Open(t.Context(), Config{Env: environment(tc.env), Flush: time.Second, Log: zerolog.Nop()})
			t.Cleanup(func() { tr.Close(t.Context()) })
			if (tr != nil) != tc.on || (tr.Provider() != nil) != tc.on {
				t.Errorf("tracing = %v, want %v", tr, tc.on)
			}
			if (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("error %v, want %q", err, tc.fault)
			}
		})
	}
	if tr, err := Open(t.Context(), Config{}); tr != nil || err != nil {
		t.Errorf("without a lookup: %v, %v", tr, err)
	}
}

// end opens the way to a collector, sends three spans and closes. It returns what
// the log was told, and how long the end took.
func end(t *testing.T, url string, flush time.Duration) (log string, took time.Duration) {
	t.Helper()
	vars := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "600000", "OTEL_BSP_EXPORT_TIMEOUT": "600000", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
	for name, v := range vars {
		t.Setenv(name, v) // the exporter reads it itself
	}
	var told bytes.Buffer
	tr, err := Open(t.Context(), Config{
		Env: environment(vars), Flush: flush, Who: "the test", Log: zerolog.New(&told),
		About: []attribute.KeyValue{attribute.String("service.name", "cellar")},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, span := tr.Provider().Tracer("t").Start(t.Context(), "a walk")
		span.End()
	}
	began := time.Now()
	tr.Close(t.Context())
	return told.String(), time.Since(began)
}

func TestClose_SendsWhatWaits(t *testing.T) {
	got := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		got <- body.String()
	}))
	t.Cleanup(collector.Close)
	if told, _ := end(t, collector.URL, time.Minute); told != "" {
		t.Errorf("log %s", told)
	}
	if body := <-got; strings.Count(body, "a walk") != 3 || !strings.Contains(body, "cellar") {
		t.Errorf("the collector got %q", body)
	}
}

func TestClose_ACollectorThatIsSilentCostsTheTimeOfTheFlushOnly(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections wait in its queue for ever
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	told, took := end(t, "http://"+silent.Addr().String(), 100*time.Millisecond)
	if took > 2*time.Minute { // without the bound it is ten minutes
		t.Errorf("the end took %s", took)
	}
	if strings.Count(told, "traces are not sent; the test goes on without them") != 1 {
		t.Errorf("log %s", told)
	}
}
