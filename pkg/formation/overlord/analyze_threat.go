package overlord

import (
	"regexp"
	"strings"
	"sync"
)

// Threats are recognised by whole phrases that are commands to this system, not
// by words that also stand in honest questions: a message that is refused
// wrongly costs more than one that a model, which has its own guard, sees. So
// "ignore the previous instructions, I meant blue" passes, and so does whoever
// asks about attacks, quotes one, or wants one translated.

// threat is a kind with the phrases that give it away.
type threat struct {
	kind  string
	sure  *regexp.Regexp // enough by itself
	begin *regexp.Regexp // together with end
	end   *regexp.Regexp
}

const (
	// rulesOf are the instructions that only an attacker speaks of.
	rulesOf = `(?:your|any|all|all\s+(?:of\s+)?(?:the|your|these)|these|those|the\s+(?:previous|prior|above|system|safety))\s+(?:\w+\s+){0,2}(?:system\s+(?:prompt|message|instructions)|instructions|rules|guidelines|safety\s+\w+|guardrails|restrictions|programming|training|prompt)`
	tell    = `\b(?:reveal|print|output|show|repeat|display|tell|give|send|list|dump|expose|leak|paste)`
)

// threats are compiled at the first message.
var threats = sync.OnceValue(func() []threat {
	re := func(s string) *regexp.Regexp { return regexp.MustCompile(`(?i)` + s) }
	override := re(`(?:^|[.!?\n:;,]\s*|\band\s+|\bthen\s+|\bplease\s+|\bnow\s+)(?:ignore|disregard|forget|override|bypass|discard)\s+(?:all\s+|any\s+|everything\s+in\s+)*(?:of\s+)?` + rulesOf)
	return []threat{
		{
			kind: ThreatJailbreak,
			sure: re(`\byou\s+are\s+(?:now\s+)?(?:DAN\b|in\s+(?:developer|god|jailbreak|dan)\s+mode)|\b(?:enable|enter|activate|switch\s+(?:in)?to)\s+(?:developer|god|jailbreak|dan)\s+mode\b.{0,80}\b(?:no|without|ignore|unrestricted|unfiltered)\b|\bact\s+as\s+(?:an?\s+)?(?:unrestricted|unfiltered|uncensored|jailbroken)\s+(?:ai|assistant|model|version)\b|\bpretend\s+(?:that\s+)?you\s+have\s+no\s+(?:rules|restrictions|guidelines|filters|limits)\b`),
		},
		{
			kind: ThreatExtraction,
			sure: re(tell + `\s+(?:me\s+|us\s+|back\s+)*(?:your|the)\s+(?:\w+\s+){0,2}(?:system\s+(?:prompt|message|instructions)|hidden\s+(?:prompt|instructions)|initial\s+(?:prompt|instructions))\b|` +
				tell + `\s+(?:me\s+|us\s+)*(?:everything|all|the\s+(?:text|words))\s+(?:above|before)\s+(?:this\s+(?:line|message)|my\s+first\s+message)\b|` +
				tell + `\s+(?:me\s+|us\s+)*(?:what\s+)?(?:the\s+)?(?:other|another)\s+users?(?:'s|')?\s+(?:\w+\s+){0,2}(?:conversations?|messages?|chats?|said|wrote|asked)\b`),
		},
		{
			kind: ThreatFishing,
			sure: re(tell + `\s+(?:me\s+|us\s+|out\s+)*(?:all\s+)?(?:of\s+)?(?:your|the\s+(?:formation|runtime|admin|other\s+users?)(?:'s)?|(?:another|other|all)\s+users?(?:'s|')?)\s+(?:\w+\s+){0,2}(?:api[\s_-]?keys?|passwords?|secrets?|credentials?|access\s+tokens?|private\s+keys?|environment\s+variables?|env\s+vars?)\b`),
		},
		{
			kind:  ThreatInjection,
			begin: override,
			end: re(`\b(?:you\s+are\s+now|from\s+now\s+on\s+you\s+(?:are|will|must|have|obey)|do\s+(?:anything|whatever)|` +
				`without\s+(?:any\s+)?(?:restrictions?|rules|filters?|limits?)|no\s+(?:restrictions?|rules|filters?|limits?)|system\s+prompt|` + tell + `\s+(?:me\s+)*(?:your|the\s+(?:system|secret|hidden|admin)))`),
		},
	}
})

// honest marks messages that speak about such phrases instead of giving them.
var honest = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:translat\w*|what\s+(?:does|is|are)\s|explain|means\b|meaning\b|example|detect\w*|prevent\w*|protect\w*|defend\w*|guard\s+against|attack(?:s|ers?)?\b|` +
		`injections?\b|jailbreaks\b|jailbreaking\b|classif\w*|how\s+(?:do|can|should)\s+(?:i|we)\b|proofread|summari[sz]e|grammar|our\s+(?:app|bot|product|chatbot)|write\s+(?:a|an|some)\s+(?:test|story|poem|article|blog|essay)|` +
		`(?:passwords?|keys?|tokens?|secrets?|credentials?|variables?)\s+(?:polic\w+|resets?|rules|requirements?|docs|documentation|formats?|pages?|forms?|rotation|managers?|lengths?|limits?|settings?|screens?|options?|pricing)\b)`)
})

// quotes are spans of a message that are spoken about, code included.
var quotes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?s)```.*?```|`[^`\n]+`|\"[^\"\n]+\"|“[^”\n]+”|«[^»\n]+»|(?:^|\\s)'[^'\n]+'(?:\\s|[.,!?;:]|$)")
})

// maxThreatChars is the part of a message, at each end, that is searched.
const maxThreatChars = 20_000

// findThreat returns the kind of threat that a message certainly is, or "".
func findThreat(message string) string {
	if len(message) > 2*maxThreatChars {
		message = message[:maxThreatChars] + "\n" + message[len(message)-maxThreatChars:]
	}
	if !suspicious(message) {
		return ""
	}
	message = quotes().ReplaceAllString(message, " ")
	if honest().MatchString(message) {
		return ""
	}
	for _, t := range threats() {
		switch {
		case t.sure != nil && t.sure.MatchString(message):
			return t.kind
		case t.begin != nil && t.begin.MatchString(message) && t.end.MatchString(message):
			return t.kind
		}
	}
	return ""
}

// suspicious is a cheap look for the words without which nothing here is a
// threat: nearly every message is done with it.
func suspicious(message string) bool {
	lower := strings.ToLower(message)
	for _, word := range []string{
		"instruction", "rules", "guideline", "guardrail", "restrict", "prompt", "safety", "programming", "training", " mode", " dan", "unfiltered",
		"uncensored", "jailbroken", "other user", "another user", "all user", "above", "before", "key", "password", "secret", "credential", "token", "env",
		"system",
	} {
		if strings.Contains(lower, word) {
			return true
		}
	}
	return false
}

// refusals are what a threat is answered with. They tell what was refused and
// nothing about how it was noticed.
var refusals = map[string]string{
	ThreatInjection:  "I can't set aside the instructions that I work with. If there is something else I can do for you, tell me what you need.",
	ThreatFishing:    "I can't share passwords, keys or other credentials. If you need access to something, please ask the people who run this service.",
	ThreatExtraction: "I can't show my internal instructions or what others have written. I'm glad to help with your own question.",
	ThreatJailbreak:  "I keep to the same rules in every role. If there is something else I can do for you, tell me what you need.",
}
