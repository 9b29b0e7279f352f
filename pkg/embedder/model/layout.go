package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// Limits of the files that are read whole, in bytes.
const (
	tokenizerLimit = 64 << 20
	configLimit    = 4 << 20
)

// layout is what the files around a model say about it.
type layout struct {
	pooling    []string // keys of poolings, concatenated
	normalise  bool
	limit      int // tokens of a text, 0: not said
	vocabulary int // 0: not said
	pad        int64
	prompts    map[string]string
	fallback   string // the name of the prompt of the task ""
	family     map[string]string
}

// readLimited reads a file within dir, which may be a link into the cache.
func readLimited(dir, name string, limit int64) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(name)))
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return data, nil
}

// readJSON reads a file that may be missing.
func readJSON(dir, name string, into any) (found bool, err error) {
	data, err := readLimited(dir, name, configLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

func readLayout(dir, id string) (layout, error) {
	l := layout{family: family(id)}
	if err := l.readModules(dir); err != nil {
		return l, err
	}
	if err := l.readLimit(dir); err != nil {
		return l, err
	}
	var c struct {
		Prompts map[string]string `json:"prompts"`
		Default *string           `json:"default_prompt_name"`
	}
	if _, err := readJSON(dir, "config_sentence_transformers.json", &c); err != nil {
		return l, err
	}
	l.prompts = c.Prompts
	if c.Default != nil {
		l.fallback = *c.Default
	}
	return l, nil
}

// readModules follows modules.json: the model itself, its pooling, perhaps a
// normalisation. Without it the mean of the tokens is what the makers of these
// files take.
func (l *layout) readModules(dir string) error {
	var modules []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	found, err := readJSON(dir, "modules.json", &modules)
	if err != nil {
		return err
	}
	pooling := "1_Pooling"
	if found {
		pooling = ""
	}
	for _, m := range modules {
		switch kind := path.Ext("." + m.Type); kind {
		case ".Transformer":
		case ".Pooling":
			pooling = m.Path
		case ".Normalize":
			l.normalise = true
		default:
			return fmt.Errorf("modules.json: a module of type %q is not supported; known are Transformer, Pooling and Normalize", m.Type)
		}
	}
	l.pooling = []string{"mean_tokens"}
	if pooling == "" {
		return nil
	}
	if !filepath.IsLocal(pooling) {
		return fmt.Errorf("modules.json: the path %q leaves the model", pooling)
	}
	return l.readPooling(dir, pooling+"/config.json")
}

// poolings are the known ones, in the order in which they are concatenated.
var poolings = []string{"cls_token", "max_tokens", "mean_tokens", "mean_sqrt_len_tokens", "lasttoken"}

// shortPoolings are their names in the newer form of the file.
var shortPoolings = map[string]string{
	"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens", "lasttoken": "lasttoken",
}

func (l *layout) readPooling(dir, name string) error {
	var c map[string]any
	found, err := readJSON(dir, name, &c)
	if err != nil || !found {
		return err
	}
	var on []string
	for key, value := range c {
		mode, ok := strings.CutPrefix(key, "pooling_mode_")
		if !ok || value != true {
			continue
		}
		if !slices.Contains(poolings, mode) {
			return fmt.Errorf("%s: %s is not supported; known are %s", name, key, strings.Join(poolings, ", "))
		}
		on = append(on, mode)
	}
	if mode, ok := c["pooling_mode"].(string); ok && len(on) == 0 {
		if shortPoolings[mode] == "" {
			return fmt.Errorf("%s: pooling_mode %q is not supported; known are cls, max, mean, mean_sqrt_len and lasttoken", name, mode)
		}
		on = []string{shortPoolings[mode]}
	}
	if len(on) > 0 {
		slices.SortFunc(on, func(a, b string) int { return slices.Index(poolings, a) - slices.Index(poolings, b) })
		l.pooling = on
	}
	return nil
}

// offsetPositions are the families whose first positions stand for nothing.
var offsetPositions = []string{"roberta", "xlm-roberta", "camembert", "mpnet"}

// readLimit takes the least of what the files say about the longest text.
func (l *layout) readLimit(dir string) error {
	var config struct {
		Type       string  `json:"model_type"`
		Positions  float64 `json:"max_position_embeddings"`
		Vocabulary int     `json:"vocab_size"`
		Pad        *int64  `json:"pad_token_id"`
	}
	var bert struct {
		Limit *float64 `json:"max_seq_length"`
	}
	var tok struct {
		Limit *float64 `json:"model_max_length"`
	}
	for name, into := range map[string]any{"config.json": &config, "sentence_bert_config.json": &bert, "tokenizer_config.json": &tok} {
		if _, err := readJSON(dir, name, into); err != nil {
			return err
		}
	}
	if slices.Contains(offsetPositions, config.Type) && config.Positions > 2 {
		config.Positions -= 2
	}
	for _, limit := range []*float64{&config.Positions, bert.Limit, tok.Limit} {
		// Some files have 1e30 for "no limit".
		if limit != nil && *limit >= 1 && *limit < math.MaxInt32 && (l.limit == 0 || int(*limit) < l.limit) {
			l.limit = int(*limit)
		}
	}
	l.vocabulary = config.Vocabulary
	if config.Pad != nil && *config.Pad >= 0 && *config.Pad < int64(max(config.Vocabulary, 1)) {
		l.pad = *config.Pad
	}
	return nil
}

// Tasks that are known for every model; most need no prefix for them.
var tasks = []string{"", "query", "document", "clustering", "classification"}

// family is the task prefixes of those models whose files don't name them.
func family(id string) map[string]string {
	name := strings.ToLower(path.Base(id))
	switch {
	case strings.HasPrefix(name, "nomic-embed-text"):
		return map[string]string{
			"query": "search_query: ", "document": "search_document: ", "clustering": "clustering: ", "classification": "classification: ",
		}
	case (strings.HasPrefix(name, "e5-") || strings.Contains(name, "-e5-")) && !strings.Contains(name, "instruct"):
		return map[string]string{"": "query: ", "query": "query: ", "document": "passage: ", "clustering": "query: ", "classification": "query: "}
	}
	return nil
}

// prefix is what stands before a text of the task.
func (l *layout) prefix(task string) (string, error) {
	name := task
	if task == "" {
		name = l.fallback
	}
	if p := l.prompts[name]; p != "" {
		return p, nil
	}
	if p := l.prompts["passage"]; p != "" && task == "document" {
		return p, nil
	}
	if p, ok := l.family[task]; ok {
		return p, nil
	}
	if _, ok := l.prompts[task]; !ok && !slices.Contains(tasks, task) {
		return "", fault.New(fault.Invalid, NameBadTask, fmt.Sprintf("embedding task %q is not known; want query, document, clustering or classification", task))
	}
	return "", nil
}
