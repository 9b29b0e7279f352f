package supervisor

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/supervisor/auth"
)

func TestOpenLog_NoSecretOfTheSettingsIsWritten(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "console"} {
		c := Config{
			Logging: LogSettings{Level: "info", Output: "stdout", Format: format},
			Metrics: MetricSettings{Token: "metrics-token-value"}, Notify: NotifySettings{Secret: `notify "secret"`},
			Auth: AuthSettings{Keys: []auth.Key{{ID: "ann", Secret: "management-secret"}}},
		}
		var out bytes.Buffer
		log, _, err := c.OpenLog(Terminal{Writer: &out}, Terminal{})
		if err != nil {
			t.Fatal(err)
		}
		c.hideKeys([]auth.Key{{ID: "ann", Secret: "rotated-secret"}})
		log.Info().Str("a", "metrics-token-value").Str("b", `notify "secret"`).Msg("management-secret, rotated-secret for ann@example.org")
		for _, secret := range []string{"metrics-token-value", "notify", "management-secret", "rotated-secret", "ann@example.org"} {
			if strings.Contains(out.String(), secret) {
				t.Errorf("%s: the log shows %s: %s", format, secret, out.String())
			}
		}
		if format == "json" && !json.Valid(out.Bytes()) {
			t.Errorf("no JSON: %s", out.String())
		}
	}
}

func TestHideKeys_ALogOfTheCallerIsTheCallers(t *testing.T) {
	t.Parallel()
	c := Config{}
	c.hideKeys([]auth.Key{{Secret: "management-secret"}})
}
