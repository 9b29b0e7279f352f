package control

import (
	"context"
	"encoding/json"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agentformation/service/pkg/fault"
	controlv1 "github.com/agentformation/service/proto/control/v1"
)

// ErrNoAnswer is in the chain of a Client's error when the other process could
// not be reached or went away during the call, as opposed to answering with a
// fault.
var ErrNoAnswer = errors.New("no answer over the control socket")

// maxCauseText bounds the text of a cause sent for the log, in bytes.
const maxCauseText = 4 << 10

// codeOf is the gRPC code of each kind. The code only helps other gRPC tools;
// our own client reads the Fault detail.
func codeOf(kind fault.Kind) codes.Code {
	switch kind {
	case fault.Invalid, fault.Unprocessable, fault.TooLarge:
		return codes.InvalidArgument
	case fault.Unauthenticated:
		return codes.Unauthenticated
	case fault.Forbidden:
		return codes.PermissionDenied
	case fault.NotFound, fault.Gone:
		return codes.NotFound
	case fault.Conflict:
		return codes.FailedPrecondition
	case fault.RateLimited:
		return codes.ResourceExhausted
	case fault.NotImplemented, fault.NotAllowed:
		return codes.Unimplemented
	case fault.Unavailable, fault.BadGateway:
		return codes.Unavailable
	case fault.Canceled:
		return codes.Canceled
	case fault.Internal, fault.Failed:
		return codes.Internal
	default:
		return codes.Internal
	}
}

// toStatus turns a Formation's error into a gRPC status that carries kind,
// name, message and data, and the cause's text for the supervisor's log. The
// end of the caller's own context keeps its gRPC code.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	if _, own := errors.AsType[*fault.Error](err); !own {
		switch {
		case errors.Is(err, context.Canceled):
			return status.Error(codes.Canceled, err.Error())
		case errors.Is(err, context.DeadlineExceeded):
			return status.Error(codes.DeadlineExceeded, err.Error())
		}
	}
	f := fault.From(err)
	detail := &controlv1.Fault{Kind: f.Kind.String(), Name: f.Name, Message: f.Message}
	if text := err.Error(); text != f.Message {
		detail.Cause = clip(text)
	} else if cause := f.Unwrap(); cause != nil {
		detail.Cause = clip(cause.Error())
	}
	if len(f.Data) > 0 {
		data, jerr := json.Marshal(f.Data)
		if jerr != nil {
			detail.Cause = clip(detail.Cause + " (its data cannot be sent: " + jerr.Error() + ")")
		} else {
			detail.Data = data
		}
	}
	st := status.New(codeOf(f.Kind), f.Message)
	if with, derr := st.WithDetails(detail); derr == nil {
		st = with
	}
	return st.Err()
}

// fromStatus is the inverse of toStatus. An error without a Fault detail did
// not come from the Formation: it is ctx's end or ErrNoAnswer.
func fromStatus(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, d := range st.Details() {
		if f, ok := d.(*controlv1.Fault); ok {
			return fromDetail(f)
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if st.Code() == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return fault.Wrap(fault.Unavailable, "", "the formation's process does not answer", errors.Join(ErrNoAnswer, err))
}

func fromDetail(d *controlv1.Fault) error {
	var cause error
	if d.GetCause() != "" {
		cause = errors.New(d.GetCause())
	}
	f := fault.Wrap(fault.ParseKind(d.GetKind()), d.GetName(), d.GetMessage(), cause)
	if len(d.GetData()) > 0 {
		var data map[string]any
		if err := json.Unmarshal(d.GetData(), &data); err == nil {
			f.Data = data
		}
	}
	return f
}

// clip shortens text to what is sent, on a whole rune.
func clip(text string) string {
	if len(text) <= maxCauseText {
		return text
	}
	cut := maxCauseText
	for cut > 0 && text[cut]&0xC0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}
