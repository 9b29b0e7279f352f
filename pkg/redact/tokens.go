package redact

import "bytes"

// prefix is how the keys of a vendor begin.
type prefix struct {
	text string
	size int // of the shortest key, in bytes
}

// prefixes are by their first byte.
var prefixes = func() (t [256][]prefix) {
	for _, p := range []prefix{
		// Models: OpenAI, Anthropic and others; Google; xAI; Groq; Replicate; Hugging Face.
		{"sk-", 16},
		{"AIza", 35},
		{"ya29.", 24},
		{"xai-", 24},
		{"gsk_", 24},
		{"r8_", 24},
		{"hf_", 24},
		// Our own.
		{"svc_sk_", 24},
		{"fma_", 24},
		{"fmc_", 24},
		{"rce_", 24},
		// Code and packages.
		{"ghp_", 20},
		{"gho_", 20},
		{"ghu_", 20},
		{"ghs_", 20},
		{"ghr_", 20},
		{"github_pat_", 24},
		{"glpat-", 16},
		{"npm_", 24},
		{"pypi-", 24},
		{"dop_v1_", 24},
		{"lin_", 20},
		// Clouds.
		{"AKIA", 20},
		{"ASIA", 20},
		// Payment, mail, chat.
		{"sk_live_", 20},
		{"sk_test_", 20},
		{"rk_live_", 20},
		{"rk_test_", 20},
		{"pk_live_", 20},
		{"pk_test_", 20},
		{"whsec_", 20},
		{"SG.", 24},
		{"xoxb-", 16},
		{"xoxp-", 16},
		{"xoxa-", 16},
		{"xoxr-", 16},
		{"xoxs-", 16},
		{"xapp-", 16},
		{"shpat_", 24},
		{"AGE-SECRET-KEY-", 40},
		// Whatever calls itself one.
		{"pk-", 20},
		{"pat_", 20},
		{"key-", 20},
		{"tok-", 20},
	} {
		t[p.text[0]] = append(t[p.text[0]], p)
	}
	return t
}()

// prefixed finds keys with a known beginning, JSON web tokens, and what follows
// the name of an authentication scheme.
func (s *scanner) prefixed(i int) int {
	switch s.p[i] {
	case 'e':
		if s.has(i, "eyJ") {
			return s.webToken(i)
		}
	case 'B', 'b':
		if end := s.scheme(i); end > i {
			return end
		}
	}
	for _, known := range prefixes[s.p[i]] {
		if !s.has(i, known.text) {
			continue
		}
		end := s.run(i, token)
		if known.text[len(known.text)-1] == '.' {
			end = s.run(i, name)
		}
		if end-i >= known.size && s.mixed(i+len(known.text), end) {
			s.add(i, end, "key")
			return end
		}
	}
	return i
}

// mixed tells whether a text holds a digit, which words rarely do.
func (s *scanner) mixed(from, to int) bool {
	for _, c := range s.p[from:to] {
		if is(c, digit) {
			return true
		}
	}
	return false
}

// webToken finds a JSON web token: base64 parts with dots between.
func (s *scanner) webToken(i int) int {
	const shortest = 24
	end := s.run(i, name)
	if end-i < shortest || bytes.IndexByte(s.p[i:end], '.') < 0 {
		return i
	}
	s.add(i, end, "token")
	return end
}

// scheme finds the credentials behind Bearer or Basic.
func (s *scanner) scheme(i int) int {
	const shortest = 8
	size := 0
	for _, known := range []string{"bearer", "basic"} {
		if len(s.p)-i > len(known) && s.p[i+len(known)] == ' ' && bytes.EqualFold(s.p[i:i+len(known)], []byte(known)) {
			size = len(known) + 1
		}
	}
	if size == 0 {
		return i
	}
	from := i + size
	end := from
	for end < len(s.p) && (is(s.p[end], name) || bytes.IndexByte([]byte("~+/="), s.p[end]) >= 0) {
		end++
	}
	if end-from < shortest || !s.mixed(from, end) && end-from < 3*shortest {
		return i
	}
	s.add(from, end, "token")
	return end
}

// privateKey finds a key in PEM.
func (s *scanner) privateKey(i int) int {
	const begin, end, dashes = "-----BEGIN ", "-----END ", "-----"
	if !s.has(i, begin) {
		return i
	}
	first := bytes.Index(s.p[i+len(begin):], []byte(dashes))
	if first < 0 || !bytes.HasSuffix(s.p[i:i+len(begin)+first], []byte("PRIVATE KEY")) {
		return i
	}
	from := i + len(begin) + first + len(dashes)
	to := len(s.p)
	if last := bytes.Index(s.p[from:], []byte(end)); last >= 0 {
		to = from + last
	} else if quote := bytes.IndexByte(s.p[from:], '"'); quote >= 0 {
		to = from + quote
	}
	s.add(from, to, "private key")
	return to
}
