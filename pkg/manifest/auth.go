package manifest

import (
	"slices"
	"strings"
	"time"
)

// The kinds of authentication, the values of auth.type.
const (
	AuthNone   = "none"
	AuthEnv    = "env" // variables of a command's environment
	AuthBearer = "bearer"
	AuthBasic  = "basic"
	AuthAPIKey = "api_key"
	AuthHeader = "header" // one header, transformers only
	AuthToken  = "token"
	AuthSASL   = "sasl"
	AuthCustom = "custom" // any headers, a2a only
	AuthHMAC   = "hmac"
	AuthOAuth2 = "oauth2" // client credentials, outbound a2a only
	AuthOpenID = "openid" // inbound a2a only
)

// Auth says how a caller proves who it is. Texts keep their placeholders.
type Auth struct {
	Type string // one of the constants; none when the block is absent
	// Values are the texts of the block by their key: token, username,
	// password, header, key, header_name, header_value, secret,
	// signature_header, timestamp_header, client_id, client_secret, token_url,
	// scope, issuer, audience, jwks_url. For AuthEnv they are the variables.
	Values map[string]string
	// Headers are those of AuthCustom.
	Headers map[string]string
	// AcceptInline lets a user give credentials in the chat (tool servers).
	AcceptInline bool
	Algorithms   []string      // AuthOpenID: RS256
	Tolerance    time.Duration // AuthHMAC inbound: of the timestamp, 300s
	ClockSkew    time.Duration // AuthOpenID: 30s
}

// authField is one key of an auth block.
type authField struct {
	key      string
	required bool
	secret   bool
	fallback string
}

// example is a value that would be right.
func (f authField) example() string {
	switch {
	case f.secret:
		return "${{ secrets.NAME }}"
	case f.key == "token_url", f.key == "issuer":
		return "https://host/path"
	}
	return "<text>"
}

// authFields lists the text keys of each kind of authentication.
func authFields(kind string) []authField {
	switch kind {
	case AuthBearer, AuthToken:
		return []authField{{key: "token", required: true, secret: true}}
	case AuthBasic, AuthSASL:
		return []authField{{key: "username", required: true}, {key: "password", required: true, secret: true}}
	case AuthAPIKey:
		return []authField{{key: "header", fallback: "X-API-Key"}, {key: "key", required: true, secret: true}}
	case AuthHeader:
		return []authField{{key: "header_name", required: true}, {key: "header_value", required: true, secret: true}}
	case AuthHMAC:
		return []authField{
			{key: "secret", required: true, secret: true},
			{key: "signature_header", fallback: "X-Signature"},
			{key: "timestamp_header", fallback: "X-Timestamp"},
		}
	case AuthOAuth2:
		return []authField{
			{key: "client_id", required: true},
			{key: "client_secret", required: true, secret: true},
			{key: "token_url", required: true},
			{key: "scope"},
		}
	case AuthOpenID:
		return []authField{{key: "issuer", required: true}, {key: "audience", required: true}, {key: "jwks_url"}}
	}
	return nil
}

// auth reads an auth block that may be of the given kinds.
func (d *decoder) auth(o *object, kinds ...string) Auth {
	a := Auth{Type: AuthNone}
	if o.absent() {
		return a
	}
	o.require("type", "type: "+kinds[0]+" (one of "+strings.Join(kinds, ", ")+")")
	set(&a.Type, o.enum("type", "a kind of authentication", kinds...))
	a.Values = map[string]string{}
	if slices.Contains(kinds, AuthEnv) {
		set(&a.AcceptInline, o.boolean("accept_inline"))
		o.inert("mcp.auth")
	}
	for _, kind := range kinds {
		if kind != a.Type && o.schema == nil {
			continue
		}
		d.authOf(o, kind, &a)
		var required []string
		for _, f := range authFields(kind) {
			if f.required {
				required = append(required, f.key)
			}
		}
		o.when("type", kind, required, nil)
	}
	if o.schema == nil && (a.Type == AuthEnv || a.Type == AuthNone) {
		return a // every other key is a variable, or nothing
	}
	if slices.Contains(kinds, AuthEnv) {
		return a // a schema can't tell variables from slips
	}
	o.end()
	return a
}

// authOf reads the keys of one kind.
func (d *decoder) authOf(o *object, kind string, a *Auth) {
	for _, f := range authFields(kind) {
		if f.required && o.schema == nil {
			o.require(f.key, f.key+": "+f.example())
		}
		v := o.text(f.key)
		if f.secret {
			d.literal(o.take(f.key), o.key(f.key))
		}
		if v.v != nil {
			a.Values[f.key] = *v.v
		} else if f.fallback != "" && o.schema == nil {
			a.Values[f.key] = f.fallback
		}
	}
	switch kind {
	case AuthEnv:
		d.authVariables(o, a)
	case AuthCustom:
		a.Headers = o.textMap("headers", nil)
	case AuthHMAC:
		a.Tolerance = 300 * time.Second
		set(&a.Tolerance, o.duration("timestamp_tolerance", 0))
	case AuthOpenID:
		a.Algorithms, a.ClockSkew = []string{"RS256"}, 30*time.Second
		set(&a.Algorithms, o.enums("allowed_algorithms", "a signature algorithm",
			"RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512", "EdDSA"))
		set(&a.ClockSkew, o.duration("clock_skew_seconds", 0))
		d.url(o.take("issuer"), o.key("issuer"))
		d.url(o.take("jwks_url"), o.key("jwks_url"))
	case AuthOAuth2:
		d.url(o.take("token_url"), o.key("token_url"))
	}
}

// authVariables reads every other key of an env block as a variable.
func (d *decoder) authVariables(o *object, a *Auth) {
	if o.n == nil {
		return
	}
	for _, e := range o.n.keys {
		if e.key == "type" || e.key == "accept_inline" {
			continue
		}
		o.used = append(o.used, e.key)
		if !envName().MatchString(e.key) {
			d.fault(&node{file: o.n.file, at: e.at}, o.key(e.key), RuleEnvName, "%q is no name of a variable; it has letters, digits and _", shorten(e.key))
			continue
		}
		s := slot{d: d, n: e.value, path: o.key(e.key)}
		if e.value.kind != kindNull && s.mustText() {
			a.Values[e.key] = e.value.text
			d.literalVariable(e.value, o.key(e.key), e.key)
		}
	}
}

// literalVariable warns about a key in a variable whose name says that it is one.
func (d *decoder) literalVariable(v *node, key, name string) {
	if sensitive().MatchString(name) {
		d.literal(v, key)
	}
}
