package embedtest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// DataFile is the name of the file with the matrices of an External model.
const DataFile = "model.onnx_data"

// Words is the vocabulary of a made tokenizer, after its special tokens; letters
// and digits stand behind it, alone and as the rest of a word.
var Words = strings.Fields("search _ query document : the cat dog sat on mat runs fast slow house tree blue red and a is not " +
	"word quick brown fox jumps over lazy hello world weather today rain sun . , ! ? - cluster class ##ing ##s ##er ##ed cafe 中 文")

var specials = []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

const letters = "abcdefghijklmnopqrstuvwxyz0123456789"

// Vocabulary is every token with its id.
func Vocabulary() map[string]int {
	vocab := map[string]int{}
	add := func(token string) {
		if _, ok := vocab[token]; !ok {
			vocab[token] = len(vocab)
		}
	}
	for _, list := range [][]string{specials, Words, strings.Split(letters, "")} {
		for _, w := range list {
			add(w)
		}
	}
	for _, l := range letters {
		add("##" + string(l))
	}
	return vocab
}

// IDs are the tokens of a text the plain way, special tokens included. The text
// may have lower-case letters, digits and the words of Words, with blanks
// between them.
func IDs(text string) []int {
	vocab := Vocabulary()
	ids := []int{vocab["[CLS]"]}
	for word := range strings.FieldsSeq(text) {
		rest := ""
		for word != "" {
			n := len(word)
			for vocab[rest+word[:n]] == 0 { // 0 is [PAD]
				n--
			}
			ids = append(ids, vocab[rest+word[:n]])
			word, rest = word[n:], "##"
		}
	}
	return append(ids, vocab["[SEP]"])
}

// object is a JSON object.
type object = map[string]any

// Tokenizer is the tokenizer.json of a made model.
func Tokenizer() []byte {
	vocab := Vocabulary()
	var added []object
	for i, s := range specials {
		added = append(added, object{"id": i, "content": s, "special": true, "normalized": false, "single_word": false, "lstrip": false, "rstrip": false})
	}
	return encode(object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added,
		"normalizer":    object{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": nil, "lowercase": true},
		"pre_tokenizer": object{"type": "BertPreTokenizer"},
		"post_processor": object{
			"type": "TemplateProcessing",
			"single": []object{
				{"SpecialToken": object{"id": "[CLS]", "type_id": 0}},
				{"Sequence": object{"id": "A", "type_id": 0}},
				{"SpecialToken": object{"id": "[SEP]", "type_id": 0}},
			},
			"special_tokens": object{
				"[CLS]": object{"id": "[CLS]", "ids": []int{vocab["[CLS]"]}, "tokens": []string{"[CLS]"}},
				"[SEP]": object{"id": "[SEP]", "ids": []int{vocab["[SEP]"]}, "tokens": []string{"[SEP]"}},
			},
		},
		"decoder": object{"type": "WordPiece", "prefix": "##", "cleanup": true},
		"model": object{
			"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab,
		},
	})
}

// Files are the files of a repository with the model, as sentence-transformers
// and the exporters to ONNX lay it out: mean pooling, normalised, with the task
// prefixes "search _ query : " and "search _ document : ".
func Files(m *Bert) map[string][]byte {
	s := m.Size
	model, data := m.ONNX()
	files := map[string][]byte{
		"README.md":         []byte("# A model of random weights, for tests\n"),
		"pytorch_model.bin": []byte("not asked for"),
		"onnx/model.onnx":   model,
		"tokenizer.json":    Tokenizer(),
		"config.json": encode(object{
			"model_type": "bert", "architectures": []string{"BertModel"}, "hidden_size": s.Hidden, "num_hidden_layers": s.Layers,
			"num_attention_heads": s.Heads, "intermediate_size": s.Inner, "vocab_size": s.Vocab, "max_position_embeddings": s.Positions,
		}),
		"tokenizer_config.json":     encode(object{"model_max_length": s.Positions, "tokenizer_class": "BertTokenizer"}),
		"sentence_bert_config.json": encode(object{"max_seq_length": s.Positions, "do_lower_case": false}),
		"modules.json": encode([]object{
			{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
			{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
			{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
		}),
		"1_Pooling/config.json": encode(object{
			"word_embedding_dimension": s.Hidden, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true,
			"pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
		}),
		"config_sentence_transformers.json": encode(object{
			"prompts": object{"query": "search _ query : ", "document": "search _ document : "}, "default_prompt_name": nil,
		}),
	}
	if data != nil {
		files["onnx/"+DataFile] = data
	}
	return files
}

func encode(v any) []byte {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("embedtest: %v", err)) // plain maps and slices always encode
	}
	return data
}
