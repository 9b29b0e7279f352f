package otlp

import (
	"context"
	"encoding/json"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/agentformation/service/pkg/formation/telemetry"
)

// The GenAI semantic conventions as of version 1.38, pinned here by name: they
// are not stable yet, and a dashboard should not break with a library.
const (
	opAgent      = "invoke_agent"
	opTool       = "execute_tool"
	opChat       = "chat"
	opEmbeddings = "embeddings"

	keyOperation     = attribute.Key("gen_ai.operation.name")
	keyProvider      = attribute.Key("gen_ai.provider.name")
	keyRequestModel  = attribute.Key("gen_ai.request.model")
	keyResponseModel = attribute.Key("gen_ai.response.model")
	keyFinish        = attribute.Key("gen_ai.response.finish_reasons")
	keyInput         = attribute.Key("gen_ai.usage.input_tokens")
	keyOutput        = attribute.Key("gen_ai.usage.output_tokens")
	keyAgentID       = attribute.Key("gen_ai.agent.id")
	keyAgentName     = attribute.Key("gen_ai.agent.name")
	keyToolName      = attribute.Key("gen_ai.tool.name")
	keyToolCall      = attribute.Key("gen_ai.tool.call.id")
	keyConversation  = attribute.Key("gen_ai.conversation.id")
	keyError         = attribute.Key("error.type")

	// What the conventions have no word for.
	keyRequest = attribute.Key("formation.request.id")
	keyPrefix  = "formation."
)

// otherError is the type of errors that have no more exact one.
const otherError = "_OTHER"

// providers are the conventions' names of those that we call otherwise.
var providers = map[string]string{"google": "gcp.gemini", "bedrock": "aws.bedrock", "azure": "azure.ai.openai", "mistral": "mistral_ai", "xai": "x_ai"}

// send makes OpenTelemetry spans of a trace, with the times that it had.
func send(tracer trace.Tracer, t *telemetry.Trace) {
	info, totals := t.Info(), t.Totals()
	root := context.Background() //nolint:forbidigo // a trace that has ended belongs to no call
	if info.Parent != "" {
		root = propagation.TraceContext{}.Extract(root, propagation.MapCarrier{"traceparent": info.Parent})
	}
	parents := make(map[string]context.Context)
	for _, r := range t.Spans() {
		ctx, ok := parents[r.Parent]
		if !ok {
			ctx = root
		}
		name, kind, attrs := describe(&r)
		attrs = append(attrs, keyConversation.String(info.SessionID), keyRequest.String(info.RequestID))
		if r.Kind == telemetry.KindTurn {
			attrs = append(attrs, keyInput.Int(totals.Tokens.Input), keyOutput.Int(totals.Tokens.Output))
		}
		if r.Error {
			attrs = append(attrs, keyError.String(otherError))
		}
		ctx, span := tracer.Start(ctx, name, trace.WithTimestamp(r.Started), trace.WithSpanKind(kind), trace.WithAttributes(attrs...))
		if r.Error {
			span.SetStatus(codes.Error, r.Message)
		}
		parents[r.ID] = ctx
		span.End(trace.WithTimestamp(r.Started.Add(r.Duration)))
	}
}

// describe returns a span's name, kind and attributes in the conventions' words.
func describe(r *telemetry.SpanRecord) (name string, kind trace.SpanKind, attrs []attribute.KeyValue) {
	switch r.Kind {
	case telemetry.KindModel:
		return describeModel(r)
	case telemetry.KindTool:
		tool := first(r.Text(telemetry.AttrTool), r.Name)
		attrs = append(agent(r), keyOperation.String(opTool), keyToolName.String(tool))
		if id := r.Text("call_id"); id != "" {
			attrs = append(attrs, keyToolCall.String(id))
		}
		if failed, _ := r.Value(telemetry.AttrIsError).(bool); failed && !r.Error {
			attrs = append(attrs, keyError.String("tool_error"))
		}
		return opTool + " " + tool, trace.SpanKindInternal, append(attrs, rest(r, telemetry.AttrServer, "read_only", telemetry.AttrRefused, "replayed")...)
	case telemetry.KindTurn, telemetry.KindDelegation:
		who := r.Text(telemetry.AttrAgent)
		if who == "" && r.Kind == telemetry.KindDelegation {
			who = r.Name
		}
		if who == "" { // nobody had been chosen when it ended
			return opAgent, trace.SpanKindInternal, append([]attribute.KeyValue{keyOperation.String(opAgent)}, rest(r, telemetry.AttrStatus, "mode", "attempt")...)
		}
		attrs = []attribute.KeyValue{keyOperation.String(opAgent), keyAgentID.String(who), keyAgentName.String(who)}
		return opAgent + " " + who, trace.SpanKindInternal, append(attrs, rest(r, telemetry.AttrStatus, "mode", "attempt")...)
	default:
		return string(r.Kind), trace.SpanKindInternal, append(agent(r), rest(r, "method", "chosen", "candidates", "used", telemetry.AttrTokens)...)
	}
}

func describeModel(r *telemetry.SpanRecord) (name string, kind trace.SpanKind, attrs []attribute.KeyValue) {
	operation := opChat
	if r.Text(telemetry.AttrOperation) != "" {
		operation = r.Text(telemetry.AttrOperation)
	}
	if operation == telemetry.OperationEmbeddings {
		operation = opEmbeddings
	}
	provider, model := r.Text(telemetry.AttrProvider), r.Text(telemetry.AttrModel)
	if known, ok := providers[provider]; ok {
		provider = known
	}
	attrs = append(agent(r), keyOperation.String(operation), keyProvider.String(provider), keyRequestModel.String(model))
	if m := r.Text(telemetry.AttrResponseModel); m != "" {
		attrs = append(attrs, keyResponseModel.String(m))
	}
	if f := r.Text(telemetry.AttrFinish); f != "" {
		attrs = append(attrs, keyFinish.StringSlice([]string{f}))
	}
	if t, ok := r.Value(telemetry.AttrTokens).(telemetry.Tokens); ok {
		attrs = append(attrs, keyInput.Int(t.Input))
		if operation != opEmbeddings {
			attrs = append(attrs, keyOutput.Int(t.Output))
		}
	}
	return operation + " " + model, trace.SpanKindClient, append(attrs, rest(r, telemetry.AttrCached, "retries", "purpose", "replayed")...)
}

func agent(r *telemetry.SpanRecord) []attribute.KeyValue {
	if id := r.Text(telemetry.AttrAgent); id != "" {
		return []attribute.KeyValue{keyAgentID.String(id), keyAgentName.String(id)}
	}
	return nil
}

// rest returns the attributes with these keys in words of our own. Only what is
// named is sent: reasons, arguments and results may hold what users said.
func rest(r *telemetry.SpanRecord, keys ...string) []attribute.KeyValue {
	var out []attribute.KeyValue
	for _, key := range keys {
		name := attribute.Key(keyPrefix + string(r.Kind) + "." + key)
		switch v := r.Value(key).(type) {
		case string:
			out = append(out, name.String(v))
		case bool:
			out = append(out, name.Bool(v))
		case int:
			out = append(out, name.Int(v))
		case float64:
			out = append(out, name.Float64(v))
		case json.RawMessage, telemetry.Tokens, *telemetry.Cost, nil:
		}
	}
	return out
}

func first(texts ...string) string {
	for _, text := range texts {
		if text != "" {
			return text
		}
	}
	return ""
}
