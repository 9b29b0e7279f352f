package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// The aims of the product, each beside its value in the report.
const (
	aimRate  = 0.5 // of the limit handler's throughput, at concurrency 16 and 64
	aimCPU   = 450 * time.Microsecond
	aimFirst = 1500 * time.Microsecond
	aimStart = 60 * time.Millisecond
	aimPSS   = 15 << 20
)

// report is what one run found.
type report struct {
	plan        plan
	begin       time.Time
	took        time.Duration
	chat        []chatResult
	starts      startResult
	idle        idleResult
	supervision *supervisionResult // nil when not measured
	loaded      memory             // of the loaded formation, right after the load
	validate    *validateResult    // nil when not measured
	embeddings  []embedResult
	routing     []routingResult
	tools       *toolsResult // nil when not measured
}

// write prints the tables.
func (r *report) write(to io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s, %s form, took %s\n\n", machine(), r.begin.Format(time.DateOnly), r.plan.form, r.took.Round(time.Second))
	r.writeChat(&b)
	r.writeRest(&b)
	if r.supervision != nil {
		r.supervision.write(&b)
	}
	writeTools(&b, r.tools)
	writeRouting(&b, r.routing)
	writeValidate(&b, r.validate)
	writeEmbeddings(&b, r.embeddings)
	_, err := io.WriteString(to, b.String())
	return err
}

func (r *report) writeChat(b *strings.Builder) {
	if len(r.chat) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "chat\tper second\tlimit\tratio\taim\tp50\tlimit\tp99\tlimit\tcpu/turn\tlimit\taim\terrors\t")
	for _, c := range r.chat {
		aim, cpuAim := "", ""
		if c.conc > 1 && !c.routed {
			aim, cpuAim = fmt.Sprintf(">= %.2f", aimRate), "< "+ms(aimCPU)
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n",
			strings.TrimPrefix(c.String(), "chat "), c.ours.rate(), c.limit.rate(), c.ours.rate()/c.limit.rate(), aim,
			ms(quantile(c.ours.latency, .5)), ms(quantile(c.limit.latency, .5)),
			ms(quantile(c.ours.latency, .99)), ms(quantile(c.limit.latency, .99)),
			ms(c.ours.cpuPerTurn()), ms(c.limit.cpuPerTurn()), cpuAim, c.ours.errors+c.limit.errors)
	}
	_ = w.Flush() // a Builder takes everything
	for _, c := range r.chat {
		if c.ours.lastErr != nil {
			fmt.Fprintf(b, "last error of %s: %v\n", c, c.ours.lastErr)
		}
	}
	b.WriteString("\n")
}

func (r *report) writeRest(b *strings.Builder) {
	if len(r.chat)+len(r.starts.again)+len(r.starts.killed) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tmedian\tp99\tlimit\tratio\taim\t")
	line := func(name string, ours, limit []time.Duration, aim time.Duration) {
		if len(ours) == 0 {
			return
		}
		ratio, limitText, aimText := "", "", ""
		if m := quantile(limit, .5); m > 0 {
			limitText, ratio = ms(m), fmt.Sprintf("%.2f", float64(quantile(ours, .5))/float64(m))
		}
		if aim > 0 {
			aimText = "< " + ms(aim)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", name, ms(quantile(ours, .5)), ms(quantile(ours, .99)), limitText, ratio, aimText)
	}
	for _, c := range r.chat {
		if c.conc == 1 && c.stream {
			line("first content frame, concurrency 1", c.ours.first, c.limit.first, aimFirst)
		}
	}
	line("start to first answer", r.starts.again, r.starts.limit, aimStart)
	line("start to first answer, new store", r.starts.fresh, r.starts.limit, 0)
	line("SIGKILL to next answer, supervised", r.starts.killed, nil, 0)
	_ = w.Flush() // a Builder takes everything

	if len(r.idle.children) == 0 {
		b.WriteString("\n")
		return
	}
	w = tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\n\tPSS\tprivate\tlimit PSS\tratio\taim\t")
	c := r.idle.child()
	fmt.Fprintf(w, "one of %d children, idle for %s\t%s\t%s\t%s\t%.2f\t< %s\t\n", len(r.idle.children), r.plan.idle,
		mb(c.pss), mb(c.private), mb(r.idle.limit.pss), float64(c.pss)/float64(max(r.idle.limit.pss, 1)), mb(aimPSS))
	fmt.Fprintf(w, "supervisor, idle\t%s\t%s\t\t\t\t\n", mb(r.idle.supervisor.pss), mb(r.idle.supervisor.private))
	if r.loaded.pss > 0 {
		fmt.Fprintf(w, "formation right after the load\t%s\t%s\t\t\t\t\n", mb(r.loaded.pss), mb(r.loaded.private))
	}
	_ = w.Flush() // a Builder takes everything
	b.WriteString("\n")
}

// ms prints a duration as milliseconds with three digits that count.
func ms(d time.Duration) string {
	v := float64(d) / float64(time.Millisecond)
	switch {
	case v < 10:
		return fmt.Sprintf("%.2f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	}
	return fmt.Sprintf("%.0f ms", v)
}

func mb(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/(1<<20)) }

const resultsHead = `# Last measured

"make bench" and "make bench-full" write this file. Every number stands beside the same number of a *limit* handler
loaded in turns in the same run: plain net/http, one call of the same model server, one inserted SQLite row, nothing
else. Load generator, model server and the measured process share the machine, so ratios say more than absolute
numbers. CPU per turn is user and system time of the serving process alone. "routed" asks the model which agent
answers, so its turn makes two model calls where the limit handler makes one. PSS counts the program's pages, shared by
all children, in equal parts: it falls with their number towards the private memory beside it.

Routing is asked two sets of questions of our own (test/bench/routing) through POST /v1/route. "words" knows what ten
agents say of themselves and the everyday words of common fields; "examples" are 120 other labelled messages, 60 for the
second team. "right" are questions that begin a session and reach the agent that their author meant (chance is 10 %),
"falsely" are questions of the team that are taken for off-topic, "sure of" those that are decided with a score of 0.75
or more. What the scripted model chooses says nothing about real ones, so that only its time is shown.

The first 500 questions say little about other teams: the everyday words were written after them, all fields of their
team are among these, and the weights were tuned on them. The held-out rows are the honest ones: a second team with 300
questions, written before their author had read how routing scores and committed before anything was measured. Words
alone found 24.3 % there, with examples 31.5 %, and of the decisions they were sure of 50 % and 59 % were right, although
the everyday words know the fields of seven of its ten agents more or less. The scoring was then improved on the odd
questions (the development rows), with no word added for this team; the even ones are what the held-out rows show. So
expect words to find about a third of what another team is asked, and little use of their "off-topic"; how much better a
real model decides is not measured here. Caveats: 111 held-out questions begin a session and 15 are off-topic, so one is
0.9 and 6.7 points, the standard error of "right" is about 4.5, and what the improvement gave hardly beyond it; all
questions are invented, not traffic; who improved the scoring had written them.

`

// save writes the report as a text block with an explanation.
func (r *report) save(file string) error {
	var b strings.Builder
	b.WriteString(resultsHead + "```\n")
	if err := r.write(&b); err != nil {
		return err
	}
	b.WriteString("```\n")
	if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("save the results: %w", err)
	}
	return nil
}
