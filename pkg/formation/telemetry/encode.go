package telemetry

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// JSON returns the trace so far as the object {"spans":[…],"totals":{…}} of
// reference runtime.md 21. It is what is stored of an ended turn.
func (t *Trace) JSON() []byte {
	if t == nil {
		return nil
	}
	spans, totals := t.Spans(), t.Totals()
	b := make([]byte, 0, 256+320*len(spans))
	b = append(b, `{"spans":[`...)
	for i := range spans {
		if i > 0 {
			b = append(b, ',')
		}
		b = spans[i].append(b)
	}
	b = append(b, `],"totals":`...)
	return append(totals.append(b), '}')
}

func (r *SpanRecord) append(b []byte) []byte {
	b = appendString(append(b, `{"span_id":`...), r.ID)
	b = append(b, `,"parent_id":`...)
	if r.Parent == "" {
		b = append(b, `null`...)
	} else {
		b = appendString(b, r.Parent)
	}
	b = appendString(append(b, `,"kind":`...), string(r.Kind))
	b = appendString(append(b, `,"name":`...), r.Name)
	status := `,"status":"ok"`
	if r.Error {
		status = `,"status":"error"`
	}
	b = append(b, status...)
	b = append(b, `,"started_at":"`...)
	b = r.Started.UTC().AppendFormat(b, timeLayout)
	b = appendMillis(append(b, `","duration_ms":`...), r.Duration)
	b = append(b, `,"attributes":{`...)
	first := true
	if r.Message != "" {
		b = appendString(append(b, `"error":`...), r.Message)
		first = false
	}
	if r.Running {
		if !first {
			b = append(b, ',')
		}
		b, first = append(b, `"running":true`...), false
	}
	for _, a := range r.Attributes {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(appendString(b, a.Key), ':')
		b = appendValue(b, a.Value)
	}
	return append(b, '}', '}')
}

// timeLayout has microseconds, so that the order of spans can be seen.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

func (t *Totals) append(b []byte) []byte {
	b = appendMillis(append(b, `{"duration_ms":`...), t.Duration)
	b = strconv.AppendInt(append(b, `,"model_calls":`...), int64(t.ModelCalls), 10)
	b = strconv.AppendInt(append(b, `,"tool_calls":`...), int64(t.ToolCalls), 10)
	b = appendValue(append(b, `,"tokens":`...), t.Tokens)
	b = appendValue(append(b, `,"cost":`...), t.Cost)
	if t.Dropped > 0 {
		b = strconv.AppendInt(append(b, `,"spans_dropped":`...), int64(t.Dropped), 10)
	}
	return append(b, '}')
}

// appendMillis writes a duration in milliseconds with three decimals at most.
func appendMillis(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, math.Round(float64(d.Microseconds()))/1000, 'f', -1, 64)
}

// appendValue writes a value as clamp left it.
func appendValue(b []byte, value any) []byte {
	switch v := value.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return append(b, `null`...)
		}
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	case string:
		return appendString(b, v)
	case json.RawMessage:
		return append(b, v...)
	case Tokens:
		b = strconv.AppendInt(append(b, `{"input":`...), int64(v.Input), 10)
		b = strconv.AppendInt(append(b, `,"output":`...), int64(v.Output), 10)
		b = strconv.AppendInt(append(b, `,"cached":`...), int64(v.Cached), 10)
		return append(b, '}')
	case *Cost:
		if v == nil {
			break
		}
		b = appendValue(append(b, `{"amount":`...), v.Amount)
		b = appendString(append(b, `,"currency":`...), v.Currency)
		return append(b, '}')
	}
	return append(b, `null`...)
}

const hexDigits = "0123456789abcdef"

// appendString writes s as a JSON string; what is not UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hexDigits[r>>4], hexDigits[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
