package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

// routingFiles are two teams of ten agents, each with questions and, apart from
// them, labelled examples: 500 and 120 that the scoring was tuned on, and in
// heldout 300 and 60 that were written without knowledge of it.
//
//go:embed routing
var routingFiles embed.FS

// nobody is the label of questions that none of the agents is for.
const nobody = "-"

// routingQuestion is one question with who should answer it.
type routingQuestion struct {
	agent   string // or nobody
	last    string // who answered before in its session; "" begins one
	message string
}

// routingCase is one way to route.
type routingCase struct {
	name     string
	team     string // directory of its files
	half     string // of the questions: "odd", "even", "" for all
	method   string
	examples bool
}

// heldOut is the team that nothing is tuned on but for its odd questions.
const heldOut = "routing/heldout"

var routingCases = []routingCase{
	{"words", "routing", "", manifest.RouteHeuristic, false},
	{"words and examples", "routing", "", manifest.RouteHeuristic, true},
	{"words and examples, else model", "routing", "", manifest.RouteHybrid, true},
	{"model", "routing", "", manifest.RouteModel, false},
	{"held out: words", heldOut, "even", manifest.RouteHeuristic, false},
	{"held out: words and examples", heldOut, "even", manifest.RouteHeuristic, true},
	{"development: words", heldOut, "odd", manifest.RouteHeuristic, false},
	{"development: words and examples", heldOut, "odd", manifest.RouteHeuristic, true},
}

// tally counts right answers among questions.
type tally struct{ right, all int }

func (t *tally) add(right bool) {
	t.all++
	if right {
		t.right++
	}
}

func (t tally) String() string {
	return fmt.Sprintf("%.1f%%", 100*float64(t.right)/float64(max(t.all, 1)))
}

// routingResult is what one case gave.
type routingResult struct {
	routingCase
	first, follow tally // questions that begin a session; follow-ups
	offTopic      tally // questions for nobody that are recognised
	alarms        tally // questions for somebody that are taken for those
	sure          tally // decisions of the default confidence
	asked         tally // decisions that a model made
	latency       []time.Duration
	cpu           time.Duration // of the formation per decision
	alone         time.Duration // one decision in this process, without HTTP; 0 when a model decides
}

// measureRouting asks POST /v1/route all questions, one after the other.
func measureRouting(ctx context.Context, p plan, dir, model string, r *report) error {
	for i, c := range routingCases {
		questions, err := routingQuestions(c.team, c.half)
		if err != nil {
			return err
		}
		res, err := routeOnce(ctx, p, filepath.Join(dir, fmt.Sprint(i)), model, c, questions)
		if err != nil {
			return fmt.Errorf("routing by %s: %w", c.name, err)
		}
		r.routing = append(r.routing, res)
	}
	return nil
}

func routeOnce(ctx context.Context, p plan, dir, model string, c routingCase, questions []routingQuestion) (routingResult, error) {
	res := routingResult{routingCase: c}
	formation := filepath.Join(dir, "formation")
	if err := writeTeam(formation, model, c); err != nil {
		return res, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return res, err
	}
	ours, err := startRuntime(ctx, p.bin, formation, port)
	if err != nil {
		return res, err
	}
	defer ours.stop()
	if err := openSessions(ctx, ours, questions); err != nil {
		return res, err
	}
	before, err := cpuTime(ours.pid)
	if err != nil {
		return res, err
	}
	for _, q := range questions {
		if err := res.ask(ours.addr, q); err != nil {
			return res, err
		}
	}
	after, err := cpuTime(ours.pid)
	if err != nil {
		return res, err
	}
	res.cpu = (after - before) / time.Duration(len(questions))
	if c.method == manifest.RouteHeuristic {
		res.alone, err = decideAlone(ctx, formation, questions)
	}
	return res, err
}

// writeTeam makes the formation that routes, on the model server.
func writeTeam(dir, model string, c routingCase) error {
	sub, err := fs.Sub(routingFiles, c.team)
	if err != nil {
		return fmt.Errorf("find the team: %w", err)
	}
	text, err := fs.ReadFile(sub, "formation.afs")
	if err != nil {
		return fmt.Errorf("read the team: %w", err)
	}
	files := map[string]string{"formation.afs": strings.Replace(string(text), "llm: {models: [{text: demo/offline}]}", fmt.Sprintf(
		"llm: {settings: {caching: {enabled: false}}, endpoints: {openai: \"http://%s/v1\"}, models: [{text: openai/fake}]}\n"+
			"server: {host: 127.0.0.1, api_keys: {admin_key: %s, client_key: %s}}\noverlord: {caching: {enabled: false}, routing: {settings: {method: %s}}}",
		model, adminKey, clientKey, c.method), 1)}
	if c.examples {
		text, err := fs.ReadFile(sub, "routing/examples.yaml")
		if err != nil {
			return fmt.Errorf("read the examples: %w", err)
		}
		files["routing/examples.yaml"] = string(text)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("write the team: %w", err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the team: %w", err)
		}
	}
	return nil
}

// routingQuestions reads a half of questions.txt of a team, or all.
func routingQuestions(team, half string) ([]routingQuestion, error) {
	text, err := routingFiles.ReadFile(team + "/questions.txt")
	if err != nil {
		return nil, fmt.Errorf("read the questions: %w", err)
	}
	var list []routingQuestion
	agent, number := "", 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if label, ok := strings.CutPrefix(line, "@"); ok {
			agent = label
			continue
		}
		if line == "" || line[0] == '#' {
			continue
		}
		number++
		if half == "odd" && number%2 == 0 || half == "even" && number%2 == 1 {
			continue
		}
		q := routingQuestion{agent: agent, message: line}
		if last, message, ok := strings.Cut(line, " > "); ok && !strings.Contains(last, " ") {
			q.last, q.message = last, message
		}
		list = append(list, q)
	}
	return list, nil
}

// openSessions has each agent answer once in a session of its own name.
func openSessions(ctx context.Context, ours *process, questions []routingQuestion) error {
	done := map[string]bool{}
	for _, q := range questions {
		if q.agent == nobody || done[q.agent] {
			continue
		}
		done[q.agent] = true
		c := caller{addr: ours.addr, done: []byte(`"success":true`)}
		c.request = post(ours.addr, "/v1/chat", map[string]string{"message": "hello", "agent_id": q.agent, "session_id": q.agent})
		err := ours.poll(ctx, 20*time.Second, c.call)
		c.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func post(addr, path string, body map[string]string) []byte {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // texts always encode
	}
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-SVC-Client-Key: %s\r\nX-SVC-User-Id: bench\r\n"+
		"Content-Length: %d\r\n\r\n%s", path, addr, clientKey, len(text), text)
}

// ask sends one question and counts what comes back.
func (r *routingResult) ask(addr string, q routingQuestion) error {
	body := map[string]string{"message": q.message}
	if q.last != "" {
		body["session_id"] = q.last
	}
	c := caller{addr: addr, request: post(addr, "/v1/route", body), done: []byte(`"success":true`)}
	defer c.close()
	begin := time.Now()
	if err := c.call(); err != nil {
		return err
	}
	r.latency = append(r.latency, time.Since(begin))
	var reply struct{ Data overlord.Preview }
	if err := json.NewDecoder(bytes.NewReader(c.body)).Decode(&reply); err != nil || len(reply.Data.Agents) == 0 {
		return fmt.Errorf("read the preview %.200s: %w", c.body, err)
	}
	d := reply.Data
	right := d.Agents[0].ID == q.agent
	r.asked.add(d.Method == overlord.MethodModel)
	switch {
	case q.agent == nobody:
		r.offTopic.add(d.OffTopic)
		return nil
	case q.last != "":
		r.follow.add(right)
	default:
		r.first.add(right)
		if d.Agents[0].Score >= 0.75 {
			r.sure.add(right)
		}
	}
	r.alarms.add(d.OffTopic)
	return nil
}

// decideAlone times a decision by words in this process, the quickest of ten
// rounds over all questions.
func decideAlone(ctx context.Context, dir string, questions []routingQuestion) (time.Duration, error) {
	f, _, err := manifest.Load(dir)
	if err != nil {
		return 0, fmt.Errorf("load the team: %w", err)
	}
	o := overlord.New(overlord.Config{Formation: f, Now: time.Now, Log: zerolog.Nop()})
	var best time.Duration
	for range 10 {
		begin := time.Now()
		for _, q := range questions {
			if _, err := o.Preview(ctx, overlord.PreviewInput{Message: q.message, LastAgent: q.last}); err != nil {
				return 0, err
			}
		}
		if took := time.Since(begin) / time.Duration(len(questions)); best == 0 || took < best {
			best = took
		}
	}
	return best, nil
}

// writeRouting prints the table. What the scripted model chooses says nothing
// about real ones, so that only words are held against the labels.
func writeRouting(b *strings.Builder, results []routingResult) {
	if len(results) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "routing of questions to 10 agents by\tof\tright\tfollow-ups\toff-topic seen\tfalsely\tsure of\tright then\tdecision\tp50\tp99\tcpu\tmodel asked\t")
	for _, r := range results {
		columns := []string{"", "", "", "", "", ""}
		alone := ""
		if r.method == manifest.RouteHeuristic {
			sure := tally{r.sure.all, r.first.all}
			columns = []string{r.first.String(), r.follow.String(), r.offTopic.String(), r.alarms.String(), sure.String(), r.sure.String()}
			alone = fmt.Sprintf("%d µs", r.alone.Microseconds())
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", r.name, r.asked.all, strings.Join(columns, "\t"), alone,
			ms(quantile(r.latency, .5)), ms(quantile(r.latency, .99)), ms(r.cpu), r.asked)
	}
	_ = w.Flush() // a Builder takes everything
	b.WriteString("\n")
}
