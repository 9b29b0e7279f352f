package supervisor

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// tlsPoll is how often the certificate's files are looked at.
const tlsPoll = time.Second

// certificate is the management API's, followed as its files change. A
// connection keeps the one it began with.
type certificate struct {
	certFile, keyFile string
	log               zerolog.Logger
	now               atomic.Pointer[tls.Certificate]
	seen              [2]stamp // of the files, when they were read last
}

// loadCertificate reads both files (PEM).
func loadCertificate(certFile, keyFile string, log zerolog.Logger) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	c.seen = c.stamps()
	pair, err := loadPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	c.now.Store(pair)
	return c, nil
}

func loadPair(certFile, keyFile string) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("server.tls: %s and %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}

func (c *certificate) stamps() [2]stamp { return [2]stamp{stampOf(c.certFile), stampOf(c.keyFile)} }

// config is for the management API's connections.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.now.Load(), nil
		},
	}
}

// watch reads the files again whenever one has changed, until ctx ends. While
// they make no pair, as between the writing of the two, the former pair stays.
func (c *certificate) watch(ctx context.Context) {
	tick := time.NewTicker(tlsPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if now := c.stamps(); now != c.seen {
			c.seen = now
			c.reload()
		}
	}
}

func (c *certificate) reload() {
	pair, err := loadPair(c.certFile, c.keyFile)
	if err != nil {
		c.log.Error().Err(err).Msg("the changed certificate is not used; the old one stays")
		return
	}
	c.now.Store(pair)
	log := c.log.Info()
	if pair.Leaf != nil {
		log = log.Time("expires", pair.Leaf.NotAfter)
	}
	log.Msg("certificate re-read")
}
