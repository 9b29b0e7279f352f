package secretfile

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// The names of files in a formation's state directory. In a directory where a
// formation runs alone, they lie beside the manifest, and belong into no bundle.
const (
	KeysFile = "keys" // the generated keys of the API
	// ChangesFile is what was changed of the secrets through the API, encrypted
	// with the key in ChangesKeyFile.
	ChangesFile    = "secrets.state.enc"
	ChangesKeyFile = "secrets.state.key"
)

// The prefixes of generated keys; 43 characters follow, 256 random bits.
const (
	AdminPrefix  = "fma_"
	ClientPrefix = "fmc_"
)

// The limits of a keys file.
const (
	MaxKeysFile = 16 << 10             // bytes
	MaxPrevious = 16                   // older pairs that are valid at one time
	MaxOverlap  = 365 * 24 * time.Hour // how long an older pair stays valid
)

// FormationKeys is the keys file: the generated keys of a formation's API. A
// key that the manifest names is not in it. `supervisor keys rotate` writes the
// file while the formation runs; the formation takes the change from there.
type FormationKeys struct {
	Admin  string `json:"admin_key,omitempty"`
	Client string `json:"client_key,omitempty"`
	// Previous are the pairs before, newest first, each valid until its end.
	Previous []PreviousKeys `json:"previous,omitempty"`
}

// PreviousKeys is a pair that was replaced and is accepted until ValidUntil.
type PreviousKeys struct {
	Admin      string    `json:"admin_key,omitempty"`
	Client     string    `json:"client_key,omitempty"`
	ValidUntil time.Time `json:"valid_until"`
}

// Valid returns the previous pairs that are still accepted at now, newest first.
func (k FormationKeys) Valid(now time.Time) []PreviousKeys {
	var valid []PreviousKeys
	for _, p := range k.Previous {
		if now.Before(p.ValidUntil) {
			valid = append(valid, p)
		}
	}
	return valid
}

// Rotate returns keys with a new pair in place of k's; a key that k lacks is
// not made. The pair of k stays valid for overlap from now (0: it ends at
// once), and pairs that have ended are dropped. Over MaxPrevious the pair that
// ends first goes.
func (k FormationKeys) Rotate(now time.Time, overlap time.Duration) FormationKeys {
	next := FormationKeys{Previous: k.Valid(now)}
	if overlap > 0 && (k.Admin != "" || k.Client != "") {
		old := PreviousKeys{Admin: k.Admin, Client: k.Client, ValidUntil: now.Add(overlap).UTC()}
		next.Previous = append([]PreviousKeys{old}, next.Previous...)
	}
	for len(next.Previous) > MaxPrevious {
		first := 0
		for i, p := range next.Previous {
			if p.ValidUntil.Before(next.Previous[first].ValidUntil) {
				first = i
			}
		}
		next.Previous = slices.Delete(next.Previous, first, first+1)
	}
	if k.Admin != "" {
		next.Admin = NewFormationKey(AdminPrefix)
	}
	if k.Client != "" {
		next.Client = NewFormationKey(ClientPrefix)
	}
	return next
}

// NewFormationKey returns prefix and 256 random bits.
func NewFormationKey(prefix string) string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	return prefix + base64.RawURLEncoding.EncodeToString(random[:])
}

// LoadKeys reads a keys file. A missing one is the zero value; a damaged one is
// a fault SecretsError, whose text never shows what the file holds.
func LoadKeys(path string) (FormationKeys, error) {
	// The state directory is the formation's own: a link there could point the
	// supervisor at any file.
	data, err := readLimited(path, MaxKeysFile, syscall.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return FormationKeys{}, nil
	}
	if err != nil {
		return FormationKeys{}, fmt.Errorf("read keys: %w", err)
	}
	var k FormationKeys
	if err := json.Unmarshal(data, &k); err != nil {
		return FormationKeys{}, fault.New(fault.Invalid, faultName,
			"the keys file "+path+" is damaged: restore it, or remove it to have new keys generated")
	}
	return k, nil
}

// updateWait is enough for some callers at once on a slow disk, where each waits
// for what it wrote.
const updateWait = 10 * time.Second

// UpdateKeys changes the keys file at path in one step (0600, the owner stays):
// change gets what it holds and returns what it shall hold, and whether that is
// anything new. It returns what the file holds in the end. Two callers at once
// take turns; a caller that is kept waiting for ten seconds gives up.
func UpdateKeys(path string, change func(FormationKeys) (FormationKeys, bool)) (FormationKeys, error) {
	unlock, err := Lock(filepath.Dir(path), updateWait)
	if err != nil {
		return FormationKeys{}, fmt.Errorf("update keys: %w", err)
	}
	defer unlock()
	old, err := LoadKeys(path)
	if err != nil {
		return FormationKeys{}, err
	}
	next, changed := change(old)
	if !changed {
		return old, nil
	}
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return FormationKeys{}, fmt.Errorf("encode keys: %w", err)
	}
	if err := replaceFile(path, append(data, '\n')); err != nil {
		return FormationKeys{}, fmt.Errorf("write keys: %w", err)
	}
	return next, nil
}
