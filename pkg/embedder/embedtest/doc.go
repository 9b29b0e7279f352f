// Package embedtest makes what tests of local embeddings need and nobody ships:
// a small BERT-like sentence embedder as an ONNX file with its tokenizer and
// configuration, the vectors that a plain computation gives for it, and a
// loopback model hub with faults.
//
// The weights come from a seed, so two runs make the same bytes. The plain
// computation shares nothing with the engines but the weights. Only tests, and
// the benchmark, import it.
package embedtest
