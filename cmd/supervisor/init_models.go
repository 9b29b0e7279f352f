package main

import (
	"context"
	"path/filepath"

	"github.com/schollz/progressbar/v3"

	"github.com/agentformation/service/pkg/supervisor"
)

// modelFlags say which embedding models init fetches.
type modelFlags struct {
	none bool
	ids  []string
}

func (f modelFlags) check() error {
	if f.none && len(f.ids) > 0 {
		return usagef("--model and --no-models contradict each other: give one")
	}
	for _, id := range f.ids {
		if err := supervisor.CheckModel(id); err != nil {
			return usagef("--model: %v", err)
		}
	}
	return nil
}

// initResult is what init did, for programs. The secret stays in the file.
type initResult struct {
	Config  string        `json:"config"`
	Created bool          `json:"created"`
	URL     string        `json:"url"`
	KeyID   string        `json:"key_id"`
	Models  []fetchedItem `json:"models"`
}

// fetchedItem is a model, or the library that runs them.
type fetchedItem struct {
	Name    string `json:"name"`
	Path    string `json:"path,omitempty"`
	Fetched bool   `json:"fetched"` // now; false with a path: it was there
	Error   string `json:"error,omitempty"`
}

// finishInit tells where the settings are, fetches models and says what is next.
func (a *app) finishInit(ctx context.Context, dir string, made supervisor.InitResult, models modelFlags) error {
	verb := "wrote"
	if !made.Created {
		verb = "kept"
	}
	if !a.json() {
		if err := a.result("%s %s (address and keys are in it)", verb, made.ConfigPath); err != nil {
			return err
		}
	}
	items := []fetchedItem{}
	if !models.none {
		var err error
		if items, err = a.fetchModels(ctx, dir, models); err != nil {
			return err
		}
	}
	if a.json() {
		return a.printJSON(initResult{made.ConfigPath, made.Created, made.URL, made.KeyID, items})
	}
	return a.result("next: supervisor serve --home %s", dir)
}

// fetchModels fetches, and tells what came. That something did not come is no
// error: the supervisor works without.
func (a *app) fetchModels(ctx context.Context, dir string, models modelFlags) ([]fetchedItem, error) {
	items := []fetchedItem{}
	cfg, err := supervisor.LoadConfig(dir, a.getenv)
	if err != nil {
		return items, err
	}
	cfg.LookupEnv = a.lookupEnv
	view := &fetchView{a: a}
	all, err := supervisor.FetchModels(ctx, cfg, supervisor.FetchOptions{Models: models.ids, Progress: view.step})
	view.close()
	if ctx.Err() != nil {
		a.say("the settings are there, the models are not: the same command goes on where it ended")
		return items, err
	}
	if err != nil {
		a.say("no models were fetched: %v", err)
		a.sayWithoutModel(dir)
		return items, nil
	}
	lacking := false
	for _, f := range all {
		item := fetchedItem{Name: f.Name, Path: f.Path, Fetched: f.Fresh}
		switch {
		case f.Err != nil && f.Name == supervisor.RuntimeName:
			item.Error = f.Err.Error()
			a.say("the %s was not fetched, so models run some ten times slower: %v", f.Name, f.Err)
		case f.Err != nil:
			item.Error, lacking = f.Err.Error(), true
			a.say("not fetched: %v", f.Err)
		case a.json():
		case f.Fresh:
			err = a.result("fetched %s", f.Name)
		default:
			err = a.result("kept %s", f.Name)
		}
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	if lacking {
		a.sayWithoutModel(dir)
	}
	return items, nil
}

// sayWithoutModel comforts: nothing is broken.
func (a *app) sayWithoutModel(dir string) {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	a.say("That is no harm: formations find memories by their words (lexical recall) until the model is there.")
	a.say("It is fetched when a formation first needs it, or by this, once the network is there: supervisor init --home %s --yes", shellWord(dir))
}

// fetchView shows how far fetches are: a bar for a person, some lines otherwise.
type fetchView struct {
	a       *app
	name    string
	tenths  int64
	waiting string                   // that another process fetches this was told
	bar     *progressbar.ProgressBar // nil without a terminal
}

func (v *fetchView) step(f supervisor.Fetching) {
	if f.Name != v.name {
		v.close()
		v.name, v.tenths, v.bar = f.Name, 0, nil
		if v.a.errTTY {
			v.bar = v.a.newBar(-1, progressbar.OptionShowBytes(true), progressbar.OptionShowTotalBytes(true),
				progressbar.OptionSetPredictTime(true), progressbar.OptionSetDescription(printable(f.Name)))
		} else {
			v.a.say("fetching %s", f.Name)
		}
	}
	if f.Waiting {
		if v.waiting != f.Name {
			v.waiting = f.Name
			v.close() // the line begins a new one
			v.a.say("%s: another process fetches it, waiting", f.Name)
		}
		return
	}
	if v.bar != nil {
		if f.Total > 0 && v.bar.GetMax64() != f.Total {
			v.bar.ChangeMax64(f.Total)
		}
		_ = v.bar.Set64(f.Done) // a terminal that is gone must not fail the fetch
		return
	}
	if tenths := 10 * f.Done / max(f.Total, 1); f.Total > 0 && tenths > v.tenths {
		v.tenths = tenths
		v.a.say("%s: %d %% of %s", f.Name, 10*tenths, bytesText(f.Total))
	}
}

func (v *fetchView) close() {
	if v.bar != nil {
		_ = v.bar.Clear() // as in step
	}
}
