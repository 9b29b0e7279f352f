package supervisor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// makeCertificate writes c.pem and k.pem for a name into dir.
func makeCertificate(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "k.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	writeFile(t, filepath.Join(dir, "c.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
}

// echo gives every connection its bytes back, and returns when all have ended.
func echo(l net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			_, _ = io.Copy(c, c) // until the client ends it
		})
	}
}

func TestCertificate_FollowsItsFilesAndABadPairChangesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	makeCertificate(t, dir, "first")
	log := &syncBuffer{}
	cert, err := loadCertificate(filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"), zerolog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { cert.watch(ctx) })
	defer wg.Wait()
	defer cancel()
	l, err := tls.Listen("tcp", "127.0.0.1:0", cert.config())
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { echo(l) })
	defer l.Close()
	dial := func() (*tls.Conn, string) {
		t.Helper()
		c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		return c, c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	old, name := dial()
	defer old.Close()
	if name != "first" {
		t.Fatalf("certificate of %q", name)
	}
	writeFile(t, filepath.Join(dir, "c.pem"), "no certificate")
	deploytest.Eventually(t, "the fault is logged", func() bool { return strings.Contains(log.String(), "the old one stays") })
	c, name := dial()
	c.Close()
	if name != "first" {
		t.Errorf("after a bad pair: certificate of %q", name)
	}
	makeCertificate(t, dir, "second")
	deploytest.Eventually(t, "the new certificate is shown", func() bool {
		c, name := dial()
		c.Close()
		return name == "second"
	})
	if _, err := old.Write([]byte("ping")); err != nil {
		t.Error(err)
	}
	if _, err := old.Read(make([]byte, 4)); err != nil {
		t.Errorf("the connection with the first certificate: %v", err)
	}
}
