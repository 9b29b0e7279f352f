package clarify

func set(words ...string) map[string]bool {
	m := make(map[string]bool, len(words))
	for _, w := range words {
		m[w] = true
	}
	return m
}

// What people say for yes, for no and for never mind, as fold leaves it.
var (
	yesWords = set("yes", "y", "yeah", "yep", "yup", "sure", "ok", "okay", "please do", "yes please", "yes, please", "go ahead",
		"yes go ahead", "yes, go ahead", "do it", "yes do it", "proceed", "confirm", "confirmed", "approve", "approved", "agreed",
		"of course", "sounds good", "true", "ja", "oui", "si", "sí")
	noWords = set("no", "n", "nope", "nah", "no thanks", "no, thanks", "no thank you", "no, thank you", "don't", "do not",
		"please don't", "deny", "denied", "reject", "rejected", "decline", "rather not", "false", "nein", "non")
	cancelWords = set("cancel", "cancel it", "cancel that", "cancel this", "stop", "stop it", "abort", "quit", "never mind", "nevermind",
		"forget it", "forget that", "forget about it", "drop it", "leave it", "abbrechen", "annuler", "cancelar")
	ordinals = map[string]int{
		"first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5,
		"1st": 1, "2nd": 2, "3rd": 3, "4th": 4, "5th": 5,
	}
)
