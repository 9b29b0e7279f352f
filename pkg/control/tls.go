package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// tlsFile holds, in this order, the certificate of a formation's own authority,
// the child's certificate and key, and the supervisor's. The authority's key is
// thrown away: nobody else can ever be admitted. One file, written by rename,
// is there whole or not at all.
const (
	tlsFile    = "control.pem"
	maxTLSFile = 64 << 10 // bytes
	tlsName    = "formation"
)

// Both ends hold the keys for as long as the run directory exists, and a
// machine's clock may be wrong at boot, so the certificates have no end that
// could be met.
var (
	tlsNotBefore = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	tlsNotAfter  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// tlsPair is the material of one run directory.
type tlsPair struct {
	authority      *x509.CertPool
	child, manager tls.Certificate
}

// EnsureTLS makes the keys for mutual TLS over the control socket in runDir
// (0700) unless they are there. They stay for the life of the directory, which
// is what lets a new supervisor reach a child that an earlier one started.
func EnsureTLS(runDir string) error {
	if _, err := loadTLS(runDir); err == nil {
		return nil
	}
	text, err := generateTLS()
	if err != nil {
		return fmt.Errorf("make control keys: %w", err)
	}
	if err := writeTLS(runDir, text); err != nil {
		return fmt.Errorf("keep control keys: %w", err)
	}
	return nil
}

func writeTLS(runDir string, text []byte) error {
	f, err := os.CreateTemp(runDir, tlsFile+".*") // 0600
	if err != nil {
		return err
	}
	// Not synced: what a crash of the machine leaves of it is made anew, since no
	// child outlives the machine.
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(runDir, tlsFile))
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return err
}

func loadTLS(runDir string) (*tlsPair, error) {
	// Neither through a link nor waiting at a pipe, which a child of another user
	// could plant there.
	f, err := os.OpenFile(filepath.Join(runDir, tlsFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open control keys: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTLSFile))
	if err != nil {
		return nil, fmt.Errorf("read control keys: %w", err)
	}
	pair, err := parseTLS(text)
	if err != nil {
		return nil, fmt.Errorf("read control keys in %s: %w", f.Name(), err)
	}
	return pair, nil
}

// parseTLS reads the five PEM blocks of tlsFile.
func parseTLS(text []byte) (*tlsPair, error) {
	var blocks [5][]byte
	for i := range blocks {
		block, rest := pem.Decode(text)
		if block == nil {
			return nil, fmt.Errorf("want 5 PEM blocks, found %d", i)
		}
		blocks[i], text = pem.EncodeToMemory(block), rest
	}
	p := &tlsPair{authority: x509.NewCertPool()}
	if !p.authority.AppendCertsFromPEM(blocks[0]) {
		return nil, errors.New("the first PEM block is no certificate")
	}
	var err error
	if p.child, err = tls.X509KeyPair(blocks[1], blocks[2]); err != nil {
		return nil, fmt.Errorf("child key pair: %w", err)
	}
	if p.manager, err = tls.X509KeyPair(blocks[3], blocks[4]); err != nil {
		return nil, fmt.Errorf("supervisor key pair: %w", err)
	}
	return p, nil
}

// server is the child's configuration: only the supervisor's key is let in.
func (p *tlsPair) server() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: curves(),
		Certificates:     []tls.Certificate{p.child},
		ClientAuth:       tls.RequireAndVerifyClientCert,
		ClientCAs:        p.authority,
	}
}

// client is the supervisor's configuration: only the child's key is believed.
func (p *tlsPair) client() *tls.Config {
	return &tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: curves(),
		Certificates:     []tls.Certificate{p.manager},
		RootCAs:          p.authority,
		ServerName:       tlsName,
	}
}

// curves leaves out the key exchange that withstands quantum computers, the
// dearest part of a start: nothing of this conversation leaves the machine.
func curves() []tls.CurveID { return []tls.CurveID{tls.X25519, tls.CurveP256} }

// generateTLS makes an authority and the two certificates that it signs.
func generateTLS() ([]byte, error) {
	rootKey, err := newKey()
	if err != nil {
		return nil, err
	}
	root := certificate(1, "control authority")
	root.IsCA, root.BasicConstraintsValid, root.MaxPathLenZero = true, true, true
	root.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, root, root, rootKey.Public(), rootKey)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})

	child := certificate(2, tlsName)
	child.DNSNames = []string{tlsName}
	child.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	manager := certificate(3, "supervisor")
	manager.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, leaf := range []*x509.Certificate{child, manager} {
		pair, err := issue(leaf, root, rootKey)
		if err != nil {
			return nil, err
		}
		text = append(text, pair...)
	}
	return text, nil
}

func certificate(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    tlsNotBefore,
		NotAfter:     tlsNotAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// newKey makes a key of the kind that a new process is the quickest to use: for
// Ed25519 it would first compute tables, a millisecond of each start; those of
// this curve are in the program.
func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// issue returns leaf, signed by the authority, and its new key as PEM.
func issue(leaf, root *x509.Certificate, rootKey *ecdsa.PrivateKey) ([]byte, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	cert, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), rootKey)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	return append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}
