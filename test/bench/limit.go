package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver that the product uses

	"github.com/agentformation/service/test/fakellm"
)

// serveModel is the model server as a process of its own.
func serveModel(ctx context.Context) error {
	ln, err := announce(ctx)
	if err != nil {
		return err
	}
	model := fakellm.New(fakellm.Options{Record: -1})
	model.Add(toolRules()...)
	return model.Run(ctx, ln)
}

// serveLimit is the limit handler as a process of its own.
func serveLimit(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("limit", flag.ContinueOnError)
	model := flags.String("model", "", "`address` of the model server")
	file := flags.String("db", "", "SQLite `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ln, err := announce(ctx)
	if err != nil {
		return err
	}
	return runLimit(ctx, ln, *model, *file)
}

// runLimit is the least that a durable chat service could do: read the
// request, ask the model, insert one row, answer.
func runLimit(ctx context.Context, ln net.Listener, model, file string) error {
	db, err := sql.Open("sqlite3", "file:"+file+"?_journal_mode=WAL&_synchronous=NORMAL&_busy_timeout=5000")
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	const table = `CREATE TABLE IF NOT EXISTS turns (id INTEGER PRIMARY KEY, at INTEGER, message TEXT, answer TEXT)`
	if _, err := db.ExecContext(ctx, table); err != nil {
		return fmt.Errorf("make the table: %w", err)
	}
	insert, err := db.PrepareContext(ctx, `INSERT INTO turns (at, message, answer) VALUES (?, ?, ?)`)
	if err != nil {
		return fmt.Errorf("prepare the insert: %w", err)
	}
	defer insert.Close()
	h := &limit{
		model:  "http://" + model + "/v1/chat/completions",
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}},
		insert: insert,
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// announce listens on a free loopback port and prints its address.
func announce(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	fmt.Println(ln.Addr())
	return ln, nil
}

// limit is the handler.
type limit struct {
	model  string
	client *http.Client
	insert *sql.Stmt
}

// completion is what both forms of the model's reply share.
type completion struct {
	Choices []struct {
		Message struct{ Content string } `json:"message"`
		Delta   struct{ Content string } `json:"delta"`
	} `json:"choices"`
}

func (l *limit) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Message string `json:"message"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := l.answerJSON
	if r.Header.Get("Accept") == "text/event-stream" {
		answer = l.answerSSE
	}
	if err := answer(w, r, in.Message); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
}

// ask sends the message to the model; the caller closes the reply's body.
func (l *limit) ask(ctx context.Context, message string, stream bool) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{
		"model": "fake", "stream": stream,
		"messages": []map[string]string{{"role": "user", "content": message}},
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.model, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return l.client.Do(req)
}

func (l *limit) record(ctx context.Context, message, answer string) error {
	_, err := l.insert.ExecContext(ctx, time.Now().UnixMilli(), message, answer)
	return err
}

func (l *limit) answerJSON(w http.ResponseWriter, r *http.Request, message string) error {
	resp, err := l.ask(r.Context(), message, false)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var c completion
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	text := c.Choices[0].Message.Content
	if err := l.record(r.Context(), message, text); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(map[string]any{"success": true, "data": map[string]string{"response": text}})
}

func (l *limit) answerSSE(w http.ResponseWriter, r *http.Request, message string) error {
	resp, err := l.ask(r.Context(), message, true)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	var all []byte
	frame := func(kind, text string) error {
		data, err := json.Marshal(map[string]any{"token": map[string]string{"type": kind, "content": text}})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", data); err != nil {
			return err
		}
		return flush.Flush()
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var c completion
		if err := json.Unmarshal(data, &c); err != nil {
			return err
		}
		if len(c.Choices) == 0 || c.Choices[0].Delta.Content == "" {
			continue
		}
		all = append(all, c.Choices[0].Delta.Content...)
		if err := frame("content", c.Choices[0].Delta.Content); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if err := l.record(r.Context(), message, string(all)); err != nil {
		return err
	}
	if err := frame("completed", string(all)); err != nil {
		return err
	}
	_, err = io.WriteString(w, "event: done\ndata: {\"finished\":true}\n\n")
	return err
}
