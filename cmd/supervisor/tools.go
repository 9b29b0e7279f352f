package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
)

func (a *app) toolsCommand() *cobra.Command {
	d := &door{a: a, wish: needAdmin}
	var server string
	cmd := &cobra.Command{
		Use:   "tools ID",
		Short: "Show the tool servers of a formation, how they are, and their tools",
		Long: `Show the tool servers of a formation, how they are, and their tools.

No server is asked: "connected" has an open session, "idle" none, which the next
call of a tool opens, and "error" could not be reached the last time. Agents know
a tool as SERVER__TOOL.`,
		Example: `  supervisor tools hello
  supervisor tools hello --server files`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: a.completeID,
		RunE: does(func(cmd *cobra.Command, args []string) error {
			return d.within(cmd.Context(), args[0], func(f *client.Formation) error {
				servers, err := f.ToolServers(cmd.Context())
				if err != nil {
					return err
				}
				tools, err := f.Tools(cmd.Context())
				if err != nil {
					return err
				}
				if servers, tools, err = ofServer(server, servers, tools); err != nil {
					return err
				}
				return a.printTools(servers, tools)
			})
		}),
	}
	d.flags(cmd, "")
	cmd.Flags().StringVar(&server, "server", "", "only this tool server")
	return cmd
}

// toolsTimeout bounds the look at tool servers after a deploy.
const toolsTimeout = 5 * time.Second

// warnOfTools names the tool servers of a new version that could not be reached:
// without them its agents answer all the same. It is silent where it has no
// admin key.
func (a *app) warnOfTools(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, toolsTimeout)
	defer cancel()
	d := &door{a: a, wish: needAdmin}
	_ = d.within(ctx, id, func(f *client.Formation) error { // the deploy itself went well
		servers, err := f.ToolServers(ctx)
		for _, s := range servers {
			if s.Error != "" {
				a.say("warning: tool server %s: %s", s.ID, strings.Join(strings.Fields(s.Error), " "))
			}
		}
		a.adviseOnPaths(servers)
		return err
	})
}

// adviseOnPaths tells what helps when a program was kept from its files, or did
// not find them, which is the same to it.
func (a *app) adviseOnPaths(servers []client.ToolServer) {
	for _, s := range servers {
		for _, sign := range []string{"EACCES", "ermission denied", "Cannot find module"} {
			if strings.Contains(s.Error, sign) {
				a.say("a formation sees its own directory and those of the system; " +
					"others are opened to it by formations.readable_paths in the supervisor's config.yaml")
				return
			}
		}
	}
}

// ofServer keeps what belongs to one server, all for "".
func ofServer(id string, servers []client.ToolServer, tools []client.Tool) ([]client.ToolServer, []client.Tool, error) {
	if id == "" {
		return servers, tools, nil
	}
	servers = slices.DeleteFunc(servers, func(s client.ToolServer) bool { return s.ID != id })
	tools = slices.DeleteFunc(tools, func(t client.Tool) bool { return t.Server != id })
	if len(servers) == 0 {
		return nil, nil, &client.Error{Status: http.StatusNotFound, Message: fmt.Sprintf("the formation has no tool server %s", id)}
	}
	return servers, tools, nil
}

func (a *app) printTools(servers []client.ToolServer, tools []client.Tool) error {
	if a.json() {
		return a.printJSON(map[string]any{"servers": orEmpty(servers), "tools": orEmpty(tools)})
	}
	if len(servers) == 0 && a.outTTY {
		a.say("it has no tool servers: `supervisor new mcp NAME` writes one")
	}
	t := table{heading: []string{"SERVER", "TYPE", "STATUS", "TOOLS", "AGENT", "DESCRIPTION"}}
	for _, s := range servers {
		t.rows = append(t.rows, []cell{
			{text: s.ID},
			{text: s.Type},
			{s.Status, serverColour(s)},
			{text: strconv.Itoa(s.Tools)},
			{text: allOr(s.AgentID)},
			{text: summary(s.Description)},
		})
	}
	if err := a.printTable(a.out, t); err != nil {
		return err
	}
	for _, s := range servers {
		if s.Error != "" {
			if _, err := fmt.Fprintln(a.out, a.paint(red, strings.Map(noBreak, printable(s.ID+": "+s.Error)))); err != nil {
				return err
			}
		}
	}
	a.adviseOnPaths(servers)
	if len(tools) == 0 {
		return nil
	}
	fmt.Fprintln(a.out)
	t = table{heading: []string{"TOOL", "SERVER", "DESCRIPTION"}}
	for _, tool := range tools {
		t.add(tool.Name, tool.Server, summary(tool.Description))
	}
	return a.printTable(a.out, t)
}

func serverColour(s client.ToolServer) colour {
	switch s.Status {
	case "connected":
		return green
	case "error":
		return red
	}
	return plain
}

// allOr names the agent that has something alone.
func allOr(agent string) string {
	if agent == "" {
		return "any"
	}
	return agent
}

// orEmpty makes a list of none: programs expect one.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// How much of a description and of an error a table shows, in characters.
const (
	maxSummary = 80
	maxTrouble = 160
)

// summary is the first line of a text that may be long.
func summary(text string) string {
	line, more, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	if more != "" && utf8.RuneCountInString(line) <= maxSummary {
		line += " …"
	}
	return short(line, maxSummary)
}

// trouble is an error on one line.
func trouble(text string) string { return short(strings.Join(strings.Fields(text), " "), maxTrouble) }

// short cuts a text that has more than most characters.
func short(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
