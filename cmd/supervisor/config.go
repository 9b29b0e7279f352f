package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/agentformation/service/pkg/supervisor"
)

func (a *app) configCommand() *cobra.Command {
	config := &cobra.Command{
		Use:   "config",
		Short: "Show or check the settings of a home on this machine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	config.AddCommand(a.configShowCommand(), a.configCheckCommand())
	return config
}

func (a *app) configShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Print the settings in effect and where each is from; secrets are masked",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			h, err := a.openHome()
			if err != nil {
				return err
			}
			if !a.json() {
				return h.cfg.Show(a.out)
			}
			var text strings.Builder
			if err := h.cfg.Show(&text); err != nil {
				return err
			}
			settings, err := asData(text.String())
			if err != nil {
				return err
			}
			return a.printJSON(map[string]any{"file": h.configPath(), "settings": settings})
		}),
	}
}

func (a *app) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Check the settings file, as a start or reload would",
		Args:  cobra.NoArgs,
		RunE: does(func(*cobra.Command, []string) error {
			path := filepath.Join(a.homeDir(), "config.yaml")
			warnings, err := supervisor.CheckConfig(path)
			if a.json() {
				result := map[string]any{"file": path, "valid": err == nil, "warnings": append([]string{}, warnings...)}
				if err != nil {
					result["faults"] = strings.Split(err.Error(), "\n")
				}
				return cmp.Or(a.printJSON(result), err)
			}
			for _, w := range warnings {
				a.say("warning: %s", w)
			}
			if err != nil {
				return err
			}
			return a.result("%s is right", path)
		}),
	}
}

// asData reads the YAML that Show wrote, for programs.
func asData(text string) (map[string]any, error) {
	var data map[string]any
	if err := yaml.Unmarshal([]byte(text), &data); err != nil {
		return nil, fmt.Errorf("read the settings in effect: %w", err)
	}
	return data, nil
}

// homeDir is the home that --home names, or the default one.
func (a *app) homeDir() string {
	if a.home != "" {
		return a.home
	}
	return a.defaultHome()
}

// configPath is the settings file.
func (h *home) configPath() string { return filepath.Join(h.dir, "config.yaml") }
