package manifest

// Logging says what is logged where.
type Logging struct {
	SystemLevel       string // debug, info, warning, error
	SystemDestination string // stdout or a path
	Conversation      ConversationLog
	RedactEntities    bool // true
}

// ConversationLog sends the events of conversations to streams.
type ConversationLog struct {
	Enabled bool // true
	Streams []LogStream
}

// LogStream is one receiver of events.
type LogStream struct {
	Transport   string // stdout, file, stream, trail
	Level       string
	Format      string // jsonl
	Destination string
	Protocol    string // zmq, http, kafka, tcp, udp or ""
	Topic       string
	Events      []string // globs; empty: all
	Auth        Auth
}

func (d *decoder) logging(o *object, l *Logging) {
	s := o.block("system")
	set(&l.SystemLevel, s.level("level"))
	set(&l.SystemDestination, s.text("destination"))
	s.inert("logging.system")
	s.end()
	c := o.block("conversation")
	set(&l.Conversation.Enabled, c.boolean("enabled"))
	streams := c.slot("streams")
	streams.list(func(_ int, item *slot) {
		if b := item.block(); b != nil {
			l.Conversation.Streams = append(l.Conversation.Streams, d.logStream(b))
		}
		item.end()
	})
	streams.end()
	c.end()
	r := o.block("redaction")
	set(&l.RedactEntities, r.boolean("entities"))
	r.end()
	o.inert("logging")
	o.end()
}

func (o *object) level(key string) read[string] {
	return o.enum(key, "a level", "debug", "info", "warning", "error")
}

func (d *decoder) logStream(o *object) LogStream {
	s := LogStream{Level: "info", Format: "jsonl"}
	o.require("transport", "transport: stdout")
	set(&s.Transport, o.enum("transport", "a transport", "stdout", "file", "stream", "trail"))
	set(&s.Level, o.level("level"))
	set(&s.Format, o.enum("format", "a format", "jsonl", "text", "msgpack", "protobuf", "datadog_json", "splunk_hec",
		"elastic_bulk", "grafana_loki", "newrelic_json", "opentelemetry"))
	set(&s.Destination, o.text("destination"))
	set(&s.Protocol, o.enum("protocol", "a protocol", "zmq", "http", "kafka", "tcp", "udp"))
	set(&s.Topic, o.text("topic"))
	s.Events = d.globs(o.slot("events"))
	if (s.Transport == "file" || s.Transport == "stream") && o.n != nil {
		o.require("destination", "destination: where the events go")
	}
	o.when("transport", "file", []string{"destination"}, nil)
	o.when("transport", "stream", []string{"destination"}, nil)
	s.Auth = d.auth(o.block("auth"), AuthBearer, AuthBasic, AuthAPIKey, AuthToken, AuthSASL)
	o.end()
	return s
}
