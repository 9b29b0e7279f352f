package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/client"
	"github.com/agentformation/service/pkg/supervisor"
)

// localProfile is the saved supervisor of the user's own home.
const localProfile = "localhost"

// initCommand makes a home.
func (a *app) initCommand() *cobra.Command {
	var opts supervisor.InitOptions
	var models modelFlags
	var yes bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the directory of a supervisor: settings, a random key pair and models",
		Long: `Make the directory of a supervisor: settings, a random key pair and models.

At a terminal it asks for the name and the port, unless --yes is given. Settings
that are there already are kept; at a terminal they can be edited, or replaced
by new ones with new keys.

Then it fetches what formations find memories with: an embedding model, half a
gigabyte, and the ONNX Runtime that runs it fast. Both go into the directory
cache, or that of SVC_CACHE_DIR, and are checked. A fetch that broke goes on
where it ended. Without a network all else works: memories are then found by
their words, and the model comes when a formation first needs it, or when init
is called again. The keys of models in config.yaml, and the variables
HF_ENDPOINT, HF_TOKEN, SVC_ONNXRUNTIME_URL and SVC_ONNXRUNTIME_SHA256, name
other places to fetch from, SVC_ONNXRUNTIME_LIB a library that is here.`,
		Example: `  supervisor init --yes
  supervisor init --yes --no-models
  HF_ENDPOINT=https://hub.example supervisor init --yes --model local/intfloat/multilingual-e5-small`,
		Args: cobra.NoArgs,
		RunE: does(func(cmd *cobra.Command, _ []string) error {
			opts.Home = a.homeDir()
			if err := models.check(); err != nil {
				return err
			}
			if opts.Port < 1 || opts.Port > 65535 {
				return usagef("--port %d: it must be 1 to 65535", opts.Port)
			}
			if a.inTTY && !yes {
				if err := a.askInit(cmd.Context(), &opts); err != nil {
					return err
				}
			}
			made, err := supervisor.Init(opts)
			if err != nil {
				return err
			}
			if err := a.saveLocal(opts.Home, made); err != nil {
				a.say("warning: the profile %s was not saved: %v", localProfile, err)
			}
			if !made.Created {
				a.warnOfSettings(cmd, made.ConfigPath)
			}
			return a.finishInit(cmd.Context(), opts.Home, made, models)
		}),
	}
	cmd.Flags().StringVar(&opts.Name, "name", "", "name of the server, part of its id (default: the host's)")
	cmd.Flags().StringVar(&opts.Host, "host", "127.0.0.1", "address that the management API listens on")
	cmd.Flags().IntVar(&opts.Port, "port", 7890, "port that the management API listens on")
	cmd.Flags().BoolVar(&yes, "yes", false, "never ask")
	cmd.Flags().BoolVar(&models.none, "no-models", false, "fetch no embedding model")
	cmd.Flags().StringArrayVar(&models.ids, "model", nil, "embedding model to fetch, may be repeated (default: "+supervisor.DefaultModel+")")
	return cmd
}

// warnOfSettings names the flags that had no effect because settings were there.
func (a *app) warnOfSettings(cmd *cobra.Command, path string) {
	for _, f := range []struct{ flag, key string }{{"name", "server_id"}, {"host", "server.host"}, {"port", "server.port"}} {
		if cmd.Flags().Changed(f.flag) {
			a.say("warning: --%s had no effect, since there are settings already: change %s in %s", f.flag, f.key, path)
		}
	}
}

// askInit asks a person for what the settings shall say, or what is to become
// of those that are there.
func (a *app) askInit(ctx context.Context, opts *supervisor.InitOptions) error {
	in := bufio.NewScanner(a.in)
	path := filepath.Join(opts.Home, "config.yaml")
	if _, err := os.Stat(path); err == nil {
		switch answer := a.ask(in, path+" exists. Keep, Edit or Override it?", "Keep"); strings.ToLower(answer) {
		case "k", "keep":
			return nil
		case "e", "edit":
			return a.edit(ctx, path)
		case "o", "override":
			aside := path + "." + time.Now().UTC().Format("20060102T150405Z")
			if err := os.Rename(path, aside); err != nil {
				return fmt.Errorf("set the old settings aside: %w", err)
			}
			a.say("the old settings are kept as %s", aside)
		default:
			return usagef("%q: it must be Keep, Edit or Override", answer)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for settings: %w", err)
	}
	host, _ := os.Hostname() // without one the person still can give a name
	opts.Name = a.ask(in, "Name of this server?", host)
	for {
		text := a.ask(in, "Port of the management API?", strconv.Itoa(opts.Port))
		port, err := strconv.Atoi(text)
		if err == nil && port > 0 && port <= 65535 {
			opts.Port = port
			return nil
		}
		a.say("%q is no port: it must be 1 to 65535", text)
		if in.Err() != nil || ctx.Err() != nil {
			return errors.Join(in.Err(), ctx.Err())
		}
	}
}

// ask puts a question; an empty answer is the suggestion.
func (a *app) ask(in *bufio.Scanner, question, suggestion string) string {
	fmt.Fprintf(a.err, "%s [%s] ", printable(question), printable(suggestion))
	if in.Scan() {
		if answer := strings.TrimSpace(in.Text()); answer != "" {
			return answer
		}
	}
	return suggestion
}

// edit lets the person's editor change the settings until they are right.
func (a *app) edit(ctx context.Context, path string) error {
	editor := strings.Fields(a.getenv("VISUAL"))
	if len(editor) == 0 {
		editor = strings.Fields(a.getenv("EDITOR"))
	}
	if len(editor) == 0 {
		return fmt.Errorf("no editor is named by VISUAL or EDITOR: change %s and try `supervisor config check`", path)
	}
	cmd := exec.CommandContext(ctx, editor[0], append(editor[1:], path)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w", editor[0], err)
	}
	_, err := supervisor.CheckConfig(path)
	return err
}

// saveLocal saves the user's own supervisor as a profile, for other programs
// that call it. Another home is named by --home and needs none.
func (a *app) saveLocal(dir string, made supervisor.InitResult) error {
	if dir != a.ownHome() {
		return nil
	}
	book, err := openProfiles(a.profilesPath())
	if err != nil {
		return err
	}
	book.set(localProfile, profile{URL: made.URL, KeyID: made.KeyID, SecretKey: client.Secret(made.Secret)})
	return book.save()
}
