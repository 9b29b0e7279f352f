package control

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	"github.com/agentformation/service/pkg/fault"
	controlv1 "github.com/agentformation/service/proto/control/v1"
)

// Records implements Formation. A record is acknowledged to the child after
// sink returned nil, and the child sends the next one after that; so a record
// may come twice (the acknowledgement was lost) but none is skipped. An error
// of sink ends the call and is returned; the end of ctx returns its cause.
func (c *Client) Records(ctx context.Context, after uint64, sink func(Record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Records(ctx)
	if err != nil {
		return fromStatus(ctx, err)
	}
	if err := stream.Send(&controlv1.RecordsRequest{AfterSeq: after}); err != nil {
		return recordsEnd(ctx, stream, err)
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return recordsEnd(ctx, stream, err)
		}
		if err := sink(recordOf(msg)); err != nil {
			return err
		}
		if err := stream.Send(&controlv1.RecordsRequest{AfterSeq: msg.GetSeq()}); err != nil {
			return recordsEnd(ctx, stream, err)
		}
	}
}

// recordsEnd finds why the stream ended: Send only says io.EOF, the reason
// comes from Recv.
func recordsEnd(ctx context.Context, stream grpc.BidiStreamingClient[controlv1.RecordsRequest, controlv1.RecordsResponse], err error) error {
	if errors.Is(err, io.EOF) {
		if _, rerr := stream.Recv(); rerr != nil {
			err = rerr
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fromStatus(ctx, err)
}

func recordOf(m *controlv1.RecordsResponse) Record {
	return Record{
		Seq: m.GetSeq(), Time: time.UnixMilli(m.GetTime()), Kind: RecordKind(m.GetKind()),
		Action: m.GetAction(), Actor: m.GetActor(), Result: m.GetResult(),
		Message: m.GetMessage(), Detail: m.GetDetail(),
	}
}

func recordMessage(r Record) *controlv1.RecordsResponse {
	return &controlv1.RecordsResponse{
		Seq: r.Seq, Time: r.Time.UnixMilli(), Kind: controlv1.RecordsResponse_Kind(r.Kind),
		Action: r.Action, Actor: r.Actor, Result: r.Result, Message: r.Message, Detail: r.Detail,
	}
}

// Records serves the stream: the first message tells where to begin, each
// later one acknowledges the record sent before it.
func (s *server) Records(stream grpc.BidiStreamingServer[controlv1.RecordsRequest, controlv1.RecordsResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()

	acks := make(chan uint64)
	go func() {
		defer cancel() // the client went away: the formation's Records ends
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case acks <- m.GetAfterSeq():
			case <-ctx.Done():
				return
			}
		}
	}()
	return toStatus(s.f.Records(ctx, first.GetAfterSeq(), func(r Record) error {
		if err := stream.Send(recordMessage(r)); err != nil {
			return err
		}
		select {
		case seq := <-acks:
			if seq != r.Seq {
				return fault.Errorf(fault.Invalid, "", "record %d was acknowledged as %d", r.Seq, seq)
			}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}))
}
