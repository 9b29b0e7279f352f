package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// What the load shows and names.
const (
	clientKey  = "fmc_bench_0123456789abcdefghij"
	adminKey   = "fma_bench_0123456789abcdefghij"
	firstAgent = "writer"
)

// writeFormation makes the formation that is measured: two agents on the model
// server, everything durable, nothing switched off but the response cache, which
// would be measured in place of a turn.
func writeFormation(dir, id, model string) error {
	files := map[string]string{
		"formation.afs": fmt.Sprintf(`schema: "1.0.0"
id: %s
description: Two agents for a measurement
version: 1.0.0
llm:
  settings:
    caching: {enabled: false}
  endpoints:
    openai: http://%s/v1
  models:
    - text: openai/fake
server:
  host: 127.0.0.1
  api_keys:
    admin_key: %s
    client_key: %s
agents:
  - %s
  - counter
`, id, model, adminKey, clientKey, firstAgent),
		"agents/" + firstAgent + ".afs": fmt.Sprintf(`schema: "1.0.0"
id: %s
name: Writer
description: Writes short texts and explains words
system_message: You write one clear sentence.
`, firstAgent),
		"agents/counter.afs": `schema: "1.0.0"
id: counter
name: Counter
description: Counts, adds and converts numbers
system_message: You answer with a number.
`,
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("write the formation: %w", err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the formation: %w", err)
		}
	}
	return nil
}
