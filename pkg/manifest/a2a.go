package manifest

import "time"

// A2A is the manifest's a2a block: agents of other formations and services.
type A2A struct {
	Enabled   bool // true
	Filtering A2AFiltering
	Outbound  A2AOutbound
	Inbound   A2AInbound
}

// A2AFiltering narrows the services that routing looks at.
type A2AFiltering struct {
	Enabled                bool          // false
	Threshold              int           // services from which on filtering starts, 50
	AlwaysIncludeThreshold float64       // 0.8
	MinRelevanceScore      float64       // 0.3
	CacheTTL               time.Duration // 30m
}

// The values of startup_policy.
const (
	StartupLenient = "lenient"
	StartupStrict  = "strict"
	StartupRetry   = "retry"
)

// A2AOutbound says whom the formation's agents may call.
type A2AOutbound struct {
	Enabled              bool // true
	StartupPolicy        string
	RetryTimeout         time.Duration // 30s
	Registries           []A2ARegistry
	DefaultRetryAttempts int           // 3
	DefaultTimeout       time.Duration // 30s
	Services             []A2AService
}

// A2ARegistry is a registry of services.
type A2ARegistry struct {
	URL                string
	Required           bool
	HealthCheckTimeout time.Duration
	RetryAttempts      int
}

// A2AInbound says who may call the formation's agents, and where.
type A2AInbound struct {
	Enabled          bool
	Host             string // 0.0.0.0
	Port             int    // 8181
	StartupPolicy    string
	Registries       []A2ARegistry
	TrustedEndpoints []string
	Auth             Auth
}

// A2AService is a checked service, from a2a/<id>.afs or inline.
type A2AService struct {
	Schema        string
	ID            string // the file's stem when the file has none
	Name          string
	Description   string
	URL           string
	Version       string
	Active        bool // always true in A2AOutbound.Services
	Timeout       time.Duration
	RetryAttempts int
	Auth          Auth
	File          string
	Line          int
}

// a2a reads the manifest's block except the services it lists.
func (d *decoder) a2a(o *object, a *A2A) {
	set(&a.Enabled, o.boolean("enabled"))
	f := o.block("filtering")
	set(&a.Filtering.Enabled, f.boolean("enabled"))
	set(&a.Filtering.Threshold, f.integer("threshold", 0, unlimited))
	set(&a.Filtering.AlwaysIncludeThreshold, f.float("always_include_threshold", 0, 1))
	set(&a.Filtering.MinRelevanceScore, f.float("min_relevance_score", 0, 1))
	set(&a.Filtering.CacheTTL, f.duration("cache_ttl", 0))
	f.end()
	d.a2aOutbound(o.block("outbound"), &a.Outbound)
	d.a2aInbound(o.block("inbound"), &a.Inbound)
	o.end()
}

func (d *decoder) a2aOutbound(o *object, a *A2AOutbound) {
	set(&a.Enabled, o.boolean("enabled"))
	set(&a.StartupPolicy, o.enum("startup_policy", "a policy", StartupLenient, StartupStrict, StartupRetry))
	set(&a.RetryTimeout, o.duration("retry_timeout_seconds", time.Millisecond))
	a.Registries = d.registries(o)
	set(&a.DefaultRetryAttempts, o.integer("default_retry_attempts", 0, 10))
	set(&a.DefaultTimeout, o.duration("default_timeout_seconds", time.Millisecond))
	o.slot("services") // read with the files it names
	o.end()
}

func (d *decoder) a2aInbound(o *object, a *A2AInbound) {
	set(&a.Enabled, o.boolean("enabled"))
	set(&a.Host, o.text("host"))
	set(&a.Port, o.integer("port", 1, 65535))
	set(&a.StartupPolicy, o.enum("startup_policy", "a policy", StartupLenient, StartupStrict, StartupRetry))
	a.Registries = d.registries(o)
	set(&a.TrustedEndpoints, o.texts("trusted_endpoints"))
	a.Auth = d.auth(o.block("auth"), AuthNone, AuthAPIKey, AuthBearer, AuthBasic, AuthCustom, AuthHMAC, AuthOpenID)
	o.end()
}

// registries reads URLs, or blocks with a url.
func (d *decoder) registries(o *object) []A2ARegistry {
	var out []A2ARegistry
	s := o.slot("registries")
	s.list(func(_ int, item *slot) {
		r := A2ARegistry{HealthCheckTimeout: 5 * time.Second, RetryAttempts: 3}
		patterned(item.schema, urlPattern)
		if url, ok := item.text("a URL"); ok {
			if d.url(item.n, item.path) {
				r.URL = url
				out = append(out, r)
			}
		}
		if b := item.block(); b != nil {
			b.require("url", "url: https://host")
			set(&r.URL, b.url("url"))
			set(&r.Required, b.boolean("required"))
			set(&r.HealthCheckTimeout, b.duration("health_check_timeout_seconds", time.Millisecond))
			set(&r.RetryAttempts, b.integer("retry_attempts", 0, 10))
			b.end()
			out = append(out, r)
		}
		item.end()
	})
	s.end()
	return out
}

// a2aService reads a service's block; stem is the id that the file's name gives.
func (d *decoder) a2aService(o *object, a *A2AOutbound, stem string) *A2AService {
	if o.absent() {
		return nil
	}
	s := &A2AService{ID: stem, Active: true, Timeout: a.DefaultTimeout, RetryAttempts: a.DefaultRetryAttempts}
	inline := stem == ""
	d.schemaOf(o, &s.Schema, !inline)
	id := o.alias("id", "service_id")
	if inline {
		o.either("id", "service_id")
		if o.n != nil {
			o.require(id, "id: my-service")
		}
	} else {
		o.require("name", "name: My Service")
		o.require("description", "description: what the service does")
	}
	set(&s.ID, o.word(id))
	set(&s.Name, o.text("name"))
	set(&s.Description, o.text("description"))
	o.require("url", "url: https://host/path")
	set(&s.URL, o.url("url"))
	set(&s.Active, o.boolean("active"))
	set(&s.Timeout, o.duration("timeout_seconds", time.Millisecond))
	set(&s.RetryAttempts, o.integer("retry_attempts", 0, 10))
	set(&s.Version, o.text("version"))
	s.Auth = d.auth(o.block("auth"), AuthNone, AuthAPIKey, AuthBearer, AuthBasic, AuthCustom, AuthHMAC, AuthOAuth2)
	o.free("metadata", "author", "license")
	o.end()
	if o.n != nil {
		s.File, s.Line = o.n.file, o.n.at.line
	}
	return s
}
