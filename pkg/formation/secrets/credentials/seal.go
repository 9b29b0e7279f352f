package credentials

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
)

// KeyFile is the generated key in the state directory.
const KeyFile = "user-credentials.key"

const (
	rounds   = 100_000 // of PBKDF2 (reference runtime.md 12)
	keySize  = 32      // AES-256
	format   = 1       // the first byte of what is sealed
	lockWait = 30 * time.Second
)

// sealer encrypts and opens credentials. Its keys are derived at the first use,
// which takes a moment of work: most processes never need them.
type sealer struct {
	dir, key, salt string

	mu        sync.Mutex // guards the fields that follow
	own       cipher.AEAD
	generated cipher.AEAD // of KeyFile
}

// additional ties what is sealed to its row: it opens for no other user, service
// or credential. None of the three holds a control character.
func additional(user, service, id string) []byte {
	return []byte(strings.Join([]string{user, service, id}, "\x00"))
}

// seal encrypts with the manifest's key, else the generated one, which is made
// when there is none.
func (s *sealer) seal(plain, additional []byte) ([]byte, error) {
	aead, err := s.forSealing()
	if err != nil {
		return nil, fault.Wrap(fault.Internal, codeUnreadable, "The key of user credentials cannot be used", err)
	}
	return aead.Seal([]byte{format}, nil, plain, additional), nil //nolint:gosec // it puts a random nonce before the text itself
}

// open decrypts. A formation that got a key of its own later opens what was
// sealed with the generated one, too.
func (s *sealer) open(sealed, additional []byte) ([]byte, error) {
	var errs []error
	for _, get := range []func() (cipher.AEAD, error){s.written, s.stored} {
		aead, err := get()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if aead == nil {
			continue
		}
		if len(sealed) == 0 || sealed[0] != format {
			return nil, unreadable(errors.New("credentials: unknown format"))
		}
		plain, err := aead.Open(nil, nil, sealed[1:], additional)
		if err == nil {
			return plain, nil
		}
		errs = append(errs, err)
	}
	return nil, unreadable(errors.Join(errs...))
}

func unreadable(err error) error {
	return fault.Wrap(fault.Failed, codeUnreadable, "The stored credential cannot be opened: its key is another one by now. "+
		"Delete the credential and give it again, or restore user_credentials.encryption.key", err)
}

func (s *sealer) forSealing() (cipher.AEAD, error) {
	aead, err := s.written()
	if aead != nil || err != nil {
		return aead, err
	}
	if aead, err = s.stored(); aead != nil || err != nil {
		return aead, err
	}
	return s.generate()
}

// written returns the cipher of the manifest's key, nil when it has none.
func (s *sealer) written() (cipher.AEAD, error) {
	if s.key == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.derive(&s.own, s.key)
}

// stored returns the cipher of the generated key, nil when none was generated.
func (s *sealer) stored() (cipher.AEAD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.generated != nil {
		return s.generated, nil
	}
	key, err := secretfile.ReadKey(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, err
	}
	return s.derive(&s.generated, key.Encode())
}

// generate makes the key.
func (s *sealer) generate() (cipher.AEAD, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, err := s.makeKey()
	if err != nil {
		return nil, err
	}
	return s.derive(&s.generated, key.Encode())
}

// makeKey makes the file of the key. Another process of the formation may be
// about to, and waits for the lock: what takes long is done without it.
func (s *sealer) makeKey() (secretfile.Key, error) {
	unlock, err := secretfile.Lock(s.dir, lockWait)
	if err != nil {
		return secretfile.Key{}, err
	}
	defer unlock()
	key, err := secretfile.ReadKey(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		key = secretfile.GenerateKey()
		err = secretfile.SaveKey(s.path(), key)
	}
	return key, err
}

func (s *sealer) path() string { return filepath.Join(s.dir, KeyFile) }

// derive fills dst with the cipher of a text; mu is held.
func (s *sealer) derive(dst *cipher.AEAD, text string) (cipher.AEAD, error) {
	if *dst != nil {
		return *dst, nil
	}
	key, err := pbkdf2.Key(sha256.New, text, []byte(s.salt), rounds, keySize)
	if err != nil {
		return nil, fmt.Errorf("derive the key of credentials: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("use the key of credentials: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("use the key of credentials: %w", err)
	}
	*dst = aead
	return aead, nil
}
