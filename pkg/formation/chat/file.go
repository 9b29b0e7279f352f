package chat

import "strings"

// File is what a caller sent with a message, made ready for models. Its limits
// and type are checked.
type File struct {
	// Part is what a model is shown. Its Data is nil when the Text says it all.
	Part
	// Text is what a document says; "" for everything else.
	Text string
	// Size is the number of bytes that were sent; 0 is that of Data.
	Size int
	// Cut tells that the document holds more text than Text.
	Cut bool
	// Spoken tells that the file is a recording whose words are the message.
	Spoken bool
}

// NameFiles returns the note that stands for files where their content does
// not: "[files: photo.png (image), report.pdf (document)]"; "" for none.
func NameFiles(files []File) string {
	if len(files) == 0 {
		return ""
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = f.Name + " (" + string(f.Kind) + ")"
	}
	return "[files: " + strings.Join(names, ", ") + "]"
}

// WithNote returns a message with the note about its files, either of which may
// be "".
func WithNote(message, note string) string {
	if message == "" || note == "" {
		return message + note
	}
	return message + "\n\n" + note
}
