package httpapi_test

import (
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"
)

const wave = "RIFF\x00\x00\x00\x00WAVEfmt "

func TestAudioChat_NeedsAnAudioModelOfTheFormationOrTheAgent(t *testing.T) {
	t.Parallel()
	f := formationForTest()
	audio := f.LLM.Models[1]
	f.LLM.Models = f.LLM.Models[:1]
	f.Agents[1].LLM.Models = append(f.Agents[1].LLM.Models, audio)
	d := openDoor(t, doorOptions{formation: f})
	body := `{"files":[{"content":"` + base64.StdEncoding.EncodeToString([]byte(wave)) + `"}],"agent_id":"`
	for agent, want := range map[string]int{"writer": http.StatusServiceUnavailable, "coder": http.StatusOK} {
		res := d.send(t, "POST", "/v1/audiochat", body+agent+`"}`, asAnn...)
		got, _ := io.ReadAll(res.Body)
		if res.StatusCode != want || want != http.StatusOK && !strings.Contains(string(got), "llm.models") {
			t.Errorf("%s: %d %s", agent, res.StatusCode, got)
		}
	}
}

func TestChat_TakesBase64AsItIsWritten(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	content := "a\xc3\xbf\xc3\xbf\xc3\xbe?" // its base64 has both letters that differ
	std, url := base64.StdEncoding.EncodeToString([]byte(content)), base64.URLEncoding.EncodeToString([]byte(content))
	if std == url {
		t.Fatal("the alphabets do not differ")
	}
	for _, text := range []string{std, url, strings.TrimRight(std, "="), strings.ReplaceAll(std, "/", `\/`), std[:4] + `\r\n` + std[4:] + `\n`} {
		body := `{"message":"look","files":[{"filename":"a.txt","content":"` + text + `","size":8}]}`
		res := d.send(t, "POST", "/v1/chat", body, asAnn...)
		if got, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", text, res.StatusCode, got)
		}
	}
}

func TestChat_AFormationWithoutFilesSaysSo(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{noFiles: true})
	res := d.send(t, "POST", "/v1/chat", `{"message":"look","files":[{"content":"aGk="}]}`, asAnn...)
	if got, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(got), "SERVICE_UNAVAILABLE") {
		t.Errorf("%d %s", res.StatusCode, got)
	}
}
