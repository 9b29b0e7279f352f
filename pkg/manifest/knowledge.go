package manifest

import (
	"maps"
	"path"
	"strings"
	"time"
)

// The ways to retrieve from a knowledge source.
const (
	RetrievalVector     = "vector"
	RetrievalTree       = "tree"
	RetrievalTreeVector = "tree-vector"
	RetrievalHybrid     = "hybrid"
)

// Knowledge is what an agent may look up.
type Knowledge struct {
	Enabled            bool // true when the block is there
	Sources            []KnowledgeSource
	Files              []string // paths inside the bundle
	Directories        []string
	AutoUpdate         bool
	EmbeddingModel     string // "provider/model" or "": the formation's
	ChunkSize          int    // 1000
	ChunkOverlap       int    // 100, below ChunkSize
	EmbedBatchSize     int    // 50
	MaxFilesPerSource  int    // 10
	ReasoningThreshold int    // tokens, 40000; 0 off
	Tree               KnowledgeTree
}

// KnowledgeTree bounds retrieval by reasoning over a document's outline.
type KnowledgeTree struct {
	Model                string
	TerminatorModel      string
	MaxDepth             int // 3
	MaxPagesPerNode      int // 10
	MaxTokensPerNode     int // 20000
	MaxDocumentTokens    int // 500000
	MaxSufficiencyRounds int // 3
	MaxFetchedNodesPct   int // 50
}

// KnowledgeSource is one place to read from; exactly one of Path and URL is set.
type KnowledgeSource struct {
	Path              string // inside the bundle
	URL               string
	Description       string
	Recursive         bool
	AllowedExtensions []string
	FileLimit         int   // 5
	MaxFileSize       int64 // bytes, 1 MiB
	Retrieval         string
	// Regenerate says when the outline is made again: manual,
	// on-source-change, on-formation-load or "".
	Regenerate string

	Extract           bool // archives
	ExtractPattern    string
	MaxExtractedFiles int   // 1000
	MaxExtractedSize  int64 // bytes, 524288000
	Schedule          string
	Retry             SyncRetry
	Auth              SourceAuth
	Line              int
}

// SyncRetry spaces the attempts of one synchronisation.
type SyncRetry struct {
	MaxAttempts     int           // 3
	InitialDelay    time.Duration // 5s
	MaxDelay        time.Duration // 300s
	ExponentialBase float64       // 2
}

// SourceAuth is what a remote source wants to see. Values keep their
// placeholders.
type SourceAuth struct {
	Type   string // "", basic, bearer, headers, aws, gcp, azure, ssh_key
	Values map[string]string
	// AcceptNewHostKeys lets ssh_key trust a host on first sight.
	AcceptNewHostKeys bool
}

func (d *decoder) knowledge(o *object, k *Knowledge) {
	if o.absent() {
		return
	}
	*k = Knowledge{
		Enabled: true, ChunkSize: 1000, ChunkOverlap: 100, EmbedBatchSize: 50, MaxFilesPerSource: 10, ReasoningThreshold: 40_000,
		Tree: KnowledgeTree{
			MaxDepth: 3, MaxPagesPerNode: 10, MaxTokensPerNode: 20_000, MaxDocumentTokens: 500_000,
			MaxSufficiencyRounds: 3, MaxFetchedNodesPct: 50,
		},
	}
	set(&k.Enabled, o.boolean("enabled"))
	s := o.slot("sources")
	s.list(func(_ int, item *slot) {
		if b := item.block(); b != nil {
			k.Sources = append(k.Sources, d.source(b))
		}
		item.end()
	})
	s.end()
	k.Files, k.Directories = d.paths(o, "files"), d.paths(o, "directories")
	set(&k.AutoUpdate, o.boolean("auto_update"))
	k.EmbeddingModel = d.modelID(o, "embedding_model", CapabilityEmbedding)
	set(&k.ChunkSize, o.integer("chunk_size", 1, unlimited))
	set(&k.ChunkOverlap, o.integer("chunk_overlap", 0, unlimited))
	if k.ChunkOverlap >= k.ChunkSize {
		o.faultAt("chunk_overlap", "chunk_size", RuleRange, "chunk_overlap is %d, but chunk_size only %d; the overlap is smaller", k.ChunkOverlap, k.ChunkSize)
	}
	set(&k.EmbedBatchSize, o.integer("embed_batch_size", 1, unlimited))
	set(&k.MaxFilesPerSource, o.integer("max_files_per_source", 1, unlimited))
	set(&k.ReasoningThreshold, o.integer("reasoning_threshold", 0, unlimited))
	d.tree(o.block("tree"), &k.Tree)
	o.end()
}

func (d *decoder) tree(o *object, t *KnowledgeTree) {
	t.Model = d.modelID(o, "model", CapabilityText)
	t.TerminatorModel = d.modelID(o, "terminator_model", CapabilityText)
	set(&t.MaxDepth, o.integer("max_depth", 1, unlimited))
	set(&t.MaxPagesPerNode, o.integer("max_pages_per_node", 1, unlimited))
	set(&t.MaxTokensPerNode, o.integer("max_tokens_per_node", 1, unlimited))
	set(&t.MaxDocumentTokens, o.integer("max_document_tokens", 1, unlimited))
	set(&t.MaxSufficiencyRounds, o.integer("max_sufficiency_rounds", 1, unlimited))
	set(&t.MaxFetchedNodesPct, o.integer("max_fetched_nodes_pct", 1, 100))
	o.end()
}

func (d *decoder) source(o *object) KnowledgeSource {
	s := KnowledgeSource{
		FileLimit: 5, MaxFileSize: 1 << 20, Retrieval: RetrievalVector, MaxExtractedFiles: 1000, MaxExtractedSize: 524_288_000,
		Retry: SyncRetry{MaxAttempts: 3, InitialDelay: 5 * time.Second, MaxDelay: 300 * time.Second, ExponentialBase: 2},
	}
	d.sourcePlace(o, &s)
	set(&s.Description, o.text("description"))
	set(&s.Recursive, o.boolean("recursive"))
	set(&s.AllowedExtensions, o.texts("allowed_extensions"))
	set(&s.FileLimit, o.integer("file_limit", 1, unlimited))
	set64(&s.MaxFileSize, o.integer("max_file_size", 1, mostCount))
	set(&s.Retrieval, o.enum("retrieval", "a way to retrieve", RetrievalVector, RetrievalTree, RetrievalTreeVector, RetrievalHybrid))
	t := o.block("agent_tree")
	set(&s.Regenerate, t.enum("regenerate", "a moment", "manual", "on-source-change", "on-formation-load"))
	t.end()
	if s.Regenerate != "" && (s.URL != "" || s.Retrieval == RetrievalVector) {
		o.faultAt("agent_tree", "", RuleMisplaced, "works for local sources with retrieval tree, tree-vector or hybrid")
	}
	set(&s.Extract, o.boolean("extract"))
	set(&s.ExtractPattern, o.text("extract_pattern"))
	set(&s.MaxExtractedFiles, o.integer("max_extracted_files", 1, unlimited))
	set64(&s.MaxExtractedSize, o.integer("max_extracted_size", 1, mostCount))
	d.sourceSync(o, &s)
	d.sourceAuth(o.block("auth"), &s)
	o.end()
	return s
}

// sourcePlace reads path or url, one of them.
func (d *decoder) sourcePlace(o *object, s *KnowledgeSource) {
	if p := d.localPath(o, "path"); p != nil {
		s.Path = *p
	}
	url := o.text("url")
	patterned(url.schema, "^("+strings.ReplaceAll(strings.Join(remoteSchemes(), "|"), "+", `\+`)+`)://.|\$\{\{`)
	set(&s.URL, url)
	if u := o.take("url"); u != nil && u.kind == kindText {
		d.remote(u, o.key("url"))
	}
	o.exactly("path", "url")
	if o.n == nil {
		return
	}
	s.Line = o.n.at.line
	switch hasPath, hasURL := o.take("path") != nil, o.take("url") != nil; {
	case hasPath && hasURL:
		o.faultAt("url", "", RuleConflict, "stands beside path; a source has one of them")
	case !hasPath && !hasURL:
		d.fault(o.n, o.path, RuleRequired, "the source has neither path nor url; write path: docs or url: https://host/docs.zip")
	}
}

// remoteSchemes are the schemes of a knowledge source's url.
func remoteSchemes() []string {
	return []string{"http", "https", "s3", "gs", "az", "rsync", "rsync+ssh", "ftp", "sftp", "file"}
}

func (d *decoder) remote(v *node, key string) {
	if HasPlaceholder(v.text) {
		return
	}
	scheme, rest, ok := strings.Cut(v.text, "://")
	for _, known := range remoteSchemes() {
		if ok && scheme == known && rest != "" {
			return
		}
	}
	d.fault(v, key, RuleURL, "is no address of a source; it begins with %s://", strings.Join(remoteSchemes(), "://, "))
	if near := nearest(scheme, remoteSchemes()); ok && near != "" {
		d.faults[len(d.faults)-1].Suggestion = near + "://"
	}
}

func (d *decoder) sourceSync(o *object, s *KnowledgeSource) {
	b := o.block("sync")
	for _, at := range []*object{b, o} {
		set(&s.Schedule, d.schedule(at, "schedule"))
		r := at.block("retry")
		set(&s.Retry.MaxAttempts, r.integer("max_attempts", 1, 100))
		set(&s.Retry.InitialDelay, r.duration("initial_delay", 0))
		set(&s.Retry.MaxDelay, r.duration("max_delay", 0))
		set(&s.Retry.ExponentialBase, r.float("exponential_base", 1, 100))
		r.end()
	}
	b.end()
}

// sourceKeys lists the keys of one kind of a remote source's auth.
func sourceKeys(kind string) []string {
	return map[string][]string{
		"basic":   {"username", "password"},
		"bearer":  {"token"},
		"aws":     {"access_key_id", "secret_access_key", "session_token", "region", "profile", "endpoint_url"},
		"gcp":     {"credentials_json", "project"},
		"azure":   {"connection_string", "account_name", "account_key"},
		"ssh_key": {"username", "key", "key_path", "private_key", "passphrase"},
	}[kind]
}

func (d *decoder) sourceAuth(o *object, s *KnowledgeSource) {
	if o.absent() {
		return
	}
	o.require("type", "type: basic")
	kinds := []string{"basic", "bearer", "headers", "aws", "gcp", "azure", "ssh_key"}
	set(&s.Auth.Type, o.enum("type", "a kind of authentication", kinds...))
	s.Auth.Values = map[string]string{}
	for _, kind := range kinds {
		if kind != s.Auth.Type && o.schema == nil {
			continue
		}
		for _, key := range sourceKeys(kind) {
			if v := o.text(key).v; v != nil {
				s.Auth.Values[key] = *v
				d.literalVariable(o.take(key), o.key(key), key)
			}
		}
	}
	if s.Auth.Type == "headers" || o.schema != nil {
		maps.Copy(s.Auth.Values, o.textMap("headers", nil))
	}
	if s.Auth.Type == "ssh_key" || o.schema != nil {
		set(&s.Auth.AcceptNewHostKeys, o.boolean("accept_new_host_keys"))
	}
	if a := s.Auth; o.schema == nil && a.Type == "azure" && a.Values["connection_string"] == "" && (a.Values["account_name"] == "" || a.Values["account_key"] == "") {
		d.fault(o.n, o.path, RuleRequired, "azure takes connection_string, or account_name with account_key")
	}
	o.end()
}

// paths reads a list of paths inside the bundle.
func (d *decoder) paths(o *object, key string) []string {
	var out []string
	s := o.slot(key)
	s.list(func(_ int, item *slot) {
		if p, ok := item.text("a path"); ok && d.inside(item.n, item.path) {
			out = append(out, path.Clean(p))
		}
		item.end()
	})
	s.end()
	return out
}

// localPath reads one path inside the bundle.
func (d *decoder) localPath(o *object, key string) *string {
	r := o.word(key)
	if r.v == nil || !d.inside(o.n.get(key), o.key(key)) {
		return nil
	}
	clean := path.Clean(*r.v)
	return &clean
}

// inside reports a path that leaves the bundle.
func (d *decoder) inside(v *node, key string) bool {
	p := v.text
	if p != "" && !path.IsAbs(p) && !strings.Contains(p, `\`) && path.Clean(p) != ".." && !strings.HasPrefix(path.Clean(p), "../") {
		return true
	}
	d.fault(v, key, RulePath, "%q leaves the formation; write a path relative to it, without ..", shown(v, key))
	return false
}
