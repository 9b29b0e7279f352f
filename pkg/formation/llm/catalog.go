package llm

import "net/http"

// Provider makes the Model that speaks to one provider. The Router calls it
// once, at the first call of one of the provider's models; it must not block
// on the network.
type Provider func(Endpoint) (Model, error)

// Endpoint tells a Provider where to connect and as whom.
type Endpoint struct {
	// Name is the provider's name in model ids, for example "openai".
	Name string
	// BaseURL replaces the provider's own address; "" keeps it.
	BaseURL string
	// Key is the API key, "" when none is configured.
	Key Secret
	// Transport is shared by all providers of a Router; never nil.
	Transport http.RoundTripper
	// Hide takes secrets out of what the provider says; nil takes none but Key.
	Hide func(text string) string
}

// Secret is an API key. It prints and marshals as "***"; convert it to string
// where it goes on the wire and nowhere else.
type Secret string

// String hides the secret.
func (Secret) String() string { return "***" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return "***" }

// MarshalText hides the secret from encoders.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }
