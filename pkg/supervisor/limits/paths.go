package limits

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/agentformation/service/pkg/confine"
)

// system returns what every program needs to run: programs, libraries and their
// data, the state of processes and of the machine, name resolution.
func system() []string {
	return []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store", "/snap",
		// Landlock keeps other processes' memory and environment closed although
		// their directories can be read.
		"/proc",
		"/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
		"/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager",
		"/var/lib/ca-certificates",
	}
}

// settings returns the files of /etc that programs read and that hold no
// secrets.
func settings() []string {
	names := strings.Fields(`
		alternatives bash.bashrc ca-certificates ca-certificates.conf crypto-policies debian_version fonts gai.conf
		gitconfig group host.conf hostname hosts inputrc ld.so.cache ld.so.conf ld.so.conf.d lsb-release localtime
		magic mailcap mime.types nsswitch.conf os-release passwd pip.conf pki profile profile.d protocols python3
		resolv.conf rpc services ssl terminfo timezone xdg`)
	for i, name := range names {
		names[i] = "/etc/" + name
	}
	return names
}

// devices returns the devices that hold nothing.
func devices() []string {
	return []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
}

// certificates are the variables that name certificates elsewhere.
func certificates() []string {
	return []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"}
}

// openPaths writes down what Landlock leaves open to a process with this
// environment. In the run directory lies its temporary one, too.
func (g *Guard) openPaths(s *confine.Spec, env []string, initial bool) {
	c := g.cfg
	s.ReadOnly = append(system(), c.Stage, c.VersionDir)
	if g.wholeEtc() {
		s.ReadOnly = append(s.ReadOnly, "/etc")
	} else {
		s.ReadOnly = append(s.ReadOnly, settings()...)
	}
	if c.CacheDir != "" {
		s.ReadOnly = append(s.ReadOnly, c.CacheDir)
	}
	for _, name := range certificates() {
		if path := lookup(env, name); filepath.IsAbs(path) {
			s.ReadOnly = append(s.ReadOnly, path)
		}
	}
	s.ReadOnly = append(s.ReadOnly, c.Readable...)
	s.ReadWrite = append(devices(), c.StateDir, c.RunDir)
	if initial {
		s.ReadWrite = append(s.ReadWrite, c.VersionDir)
	}
	s.ReadWrite = append(s.ReadWrite, c.Writable...)
}

// wholeEtc tells whether all of /etc may be open: the file modes keep its secrets
// from the process' user. A rule for the directory survives files that are
// replaced, such as resolv.conf; rules for files do not.
func (g *Guard) wholeEtc() bool {
	if g.ownUser() {
		return true
	}
	return os.Geteuid() != 0 && !beneath("/etc", g.cfg.ConfigDir)
}

// lookup returns the value of the last entry for name.
func lookup(env []string, name string) string {
	value := ""
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// beneath tells whether path is dir or lies in it; both are absolute.
func beneath(dir, path string) bool {
	if path == "" {
		return false
	}
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
