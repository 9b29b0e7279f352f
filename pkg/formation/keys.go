package formation

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"

	"github.com/agentformation/service/pkg/formation/httpapi"
	"github.com/agentformation/service/pkg/formation/secrets"
	"github.com/agentformation/service/pkg/formation/spool"
	"github.com/agentformation/service/pkg/formation/turn"
)

// keyring gives the door the digests of the keys that are valid now.
type keyring struct {
	ring *secrets.KeyRing
	tell func(secrets ...string) // of each key that becomes valid
	last atomic.Pointer[digested]
}

type digested struct {
	from *secrets.Keys
	keys httpapi.Keys
}

// openKeys reads the formation's keys, or makes them. Later changes of their
// file are told to the audit.
func openKeys(p *parts, stateDir string) (k *keyring, generated bool, err error) {
	k = &keyring{tell: p.redact.Add}
	k.ring, generated, err = secrets.OpenKeys(secrets.KeysConfig{
		StateDir: stateDir, Server: p.manifest.Server, Resolve: p.secrets.Resolve, Changed: p.keysChanged,
	})
	if err == nil {
		k.digests() // tells the redactor
	}
	return k, generated, err
}

func (k *keyring) digests() httpapi.Keys {
	keys := k.ring.Keys()
	if last := k.last.Load(); last != nil && last.from == keys {
		return last.keys
	}
	d := &digested{from: keys, keys: httpapi.Keys{Admin: digestsOf(keys.Admin), Client: digestsOf(keys.Client)}}
	for _, v := range slices.Concat(keys.Admin, keys.Client) {
		k.tell(v.Reveal())
	}
	k.last.Store(d)
	return d.keys
}

func digestsOf(values []secrets.Value) []httpapi.Digest {
	digests := make([]httpapi.Digest, len(values))
	for i, v := range values {
		digests[i] = httpapi.DigestOf(v.Reveal())
	}
	return digests
}

// keysGenerated tells the audit that keys were made, not what they are.
func keysGenerated() spool.Record {
	return spool.Record{
		Kind: spool.Audit, Action: "keys.generated", Actor: "formation", Result: "ok",
		Message: "keys that the manifest does not set were generated",
	}
}

// keysChanged tells the audit that other keys are valid from now on, or why
// they are not.
func (p *parts) keysChanged(err error) {
	r := spool.Record{
		Kind: spool.Audit, Action: "keys.changed", Actor: "formation", Result: "ok",
		Message: "the formation took over what its keys file says",
	}
	if err != nil {
		p.log.Error().Err(err).Msg("read the changed keys file; the keys stay as they are")
		r.Result, r.Message = "failed", "the keys file can't be read; the keys stay as they are"
	}
	p.tell(p.life, r)
}

// audit records what an administrator changed through the API.
func (p *parts) audit(ctx context.Context, c httpapi.Change) {
	detail, err := json.Marshal(map[string]string{"request_id": c.RequestID, "from": c.From, "subject": p.redact.Values(c.Subject)})
	if err != nil {
		p.log.Error().Err(err).Str("action", c.Action).Msg("encode an audit record")
	}
	p.tell(context.WithoutCancel(ctx), spool.Record{
		Kind: spool.Audit, Action: c.Action, Actor: c.Actor, Result: c.Result, Message: c.Message, Detail: detail,
	})
}

// alert tells the supervisor, through the spool, what an operator should see.
func (p *parts) alert(ctx context.Context, a turn.Alert) {
	p.tell(ctx, spool.Record{Kind: spool.Alert, Action: a.Action, Actor: "formation", Result: "failed", Message: a.Message})
}

func (p *parts) tell(ctx context.Context, r spool.Record) {
	r.Message = p.redact.Values(r.Message)
	if err := p.spool.Add(ctx, r); err != nil {
		p.log.Error().Err(err).Str("action", r.Action).Msg("store a record for the supervisor")
	}
}
