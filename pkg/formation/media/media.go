// Package media makes the files of a chat message ready for models: it finds
// out what they are by their bytes, checks them against the limits of the
// manifest, makes large images smaller and reads the text of documents.
//
// Images and documents unpack to many times their size, and some are made to
// do harm: what unpacks them is the same program in another process (Serve),
// which may use little and reach nothing.
//
// It promises that nothing that a caller says about a file is believed, that a
// file that is refused is named with the limit or the reason, and that no file,
// however malicious, costs the formation more than its limits allow. The
// assembly makes a Preparer and cmd/formation-runtime runs Serve; the formation's
// API prepares files before it accepts a turn.
package media

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/media/document"
	"github.com/agentformation/service/pkg/manifest"
)

// MaxText is how much text is kept of one document, in bytes.
const MaxText = 1 << 20

// parallel is how many files of one formation are worked on at once: images and
// documents unpack to many times their size.
const parallel = 2

// Upload is a file as a caller sent it.
type Upload struct {
	Name string // may be "" and is no path
	Type string // the media type that the caller says, may be ""
	Data []byte
}

// Worker unpacks files; *Process satisfies it. An error that is a *BadFileError is
// the file's fault.
type Worker interface {
	// Text reads the text of a document, at most maxText bytes.
	Text(ctx context.Context, format document.Format, data []byte, maxText int) (document.Text, error)
	// Fit makes an image anew, upright and at most width by height; 0 is no limit.
	Fit(ctx context.Context, image []byte, width, height int) (out []byte, mediaType string, err error)
}

// Config is what a Preparer is made of.
type Config struct {
	// MaxFiles and MaxFileBytes are those of input_limits; 0 is no limit.
	MaxFiles     int
	MaxFileBytes int64
	// Media are the limits by kind of the formation, Agents those of each of its
	// agents by id.
	Media  manifest.Media
	Agents map[string]manifest.Media
	// KeepPDF keeps the bytes of PDF files beside their text, for a formation
	// with a model that reads them.
	KeepPDF bool
	Worker  Worker
}

// Preparer prepares files. It is safe for concurrent use.
type Preparer struct {
	cfg    Config
	widest manifest.Media // what some agent may be shown
	slots  chan struct{}
}

// New returns a Preparer.
func New(cfg Config) *Preparer {
	return &Preparer{cfg: cfg, widest: widest(cfg.Media, cfg.Agents), slots: make(chan struct{}, parallel)}
}

// Batch is the files of one message.
type Batch struct {
	Files []Upload
	// Agent is the id of who answers, "" when that is decided later: then files
	// are taken that some agent may be shown, and Measure holds them against
	// the limits of the one who does.
	Agent string
	// Spoken tells that the files are the message itself. The formation's model
	// listens when no agent is named.
	Spoken bool
}

func (p *Preparer) limits(b *Batch) *manifest.Media {
	own, ok := p.cfg.Agents[b.Agent]
	switch {
	case ok:
		return &own
	case b.Agent == "" && !b.Spoken:
		return &p.widest
	default:
		return &p.cfg.Media
	}
}

// Refusal says what is wrong with one file.
type Refusal struct {
	File    int    // its place in the list, -1 for the list as a whole
	Field   string // filename, content, content_type; "" for the file as a whole
	Message string // names the file and the limit
	TooLong bool   // it is over a limit
}

// RefusedError tells that files cannot be taken, and why for each.
type RefusedError struct{ Refusals []Refusal }

func (e *RefusedError) Error() string {
	texts := make([]string, len(e.Refusals))
	for i, r := range e.Refusals {
		texts[i] = r.Message
	}
	return strings.Join(texts, "; ")
}

// Prepare checks files and makes them ready, in their order. Its error is a
// *RefusedError naming every file that is wrong, the end of ctx, or a fault when
// documents cannot be read at present.
func (p *Preparer) Prepare(ctx context.Context, batch Batch) ([]chat.File, error) {
	uploads, limits := batch.Files, p.limits(&batch)
	if most := p.cfg.MaxFiles; most > 0 && len(uploads) > most {
		return nil, &RefusedError{[]Refusal{{
			File: -1, TooLong: true, Message: fmt.Sprintf("%d files are more than the %d that one message may have (input_limits.max_batch_items)", len(uploads), most),
		}}}
	}
	works := make([]work, len(uploads))
	for i := range uploads {
		works[i] = p.look(i, &uploads[i], limits)
	}
	if err := refused(works); err != nil {
		return nil, err
	}
	return each(ctx, works, p.finish)
}

// each does what takes time to all files, and returns them.
func each(ctx context.Context, works []work, do func(context.Context, *work) error) ([]chat.File, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range works {
		group.Go(func() error { return do(ctx, &works[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := refused(works); err != nil {
		return nil, err
	}
	files := make([]chat.File, len(works))
	for i := range works {
		files[i] = works[i].file
	}
	return files, nil
}

func refused(works []work) error {
	var all []Refusal
	for i := range works {
		if r := works[i].refusal; r != nil {
			all = append(all, *r)
		}
	}
	if len(all) > 0 {
		return &RefusedError{all}
	}
	return nil
}

// work is a file on its way.
type work struct {
	index   int
	limits  *manifest.Media
	found   kind
	file    chat.File
	refusal *Refusal
}

func (w *work) refuse(field, format string, args ...any) {
	w.refusal = &Refusal{
		File: w.index, Field: field,
		Message: fmt.Sprintf("files[%d] (%s): ", w.index, w.file.Name) + fmt.Sprintf(format, args...),
	}
}

func (w *work) tooLarge(format string, args ...any) {
	w.refuse("content", format, args...)
	w.refusal.TooLong = true
}

// look does what is cheap: what the file is, and whether it is too large.
func (p *Preparer) look(i int, u *Upload, limits *manifest.Media) work {
	w := work{index: i, limits: limits, file: chat.File{Part: chat.Part{Name: cleanName(u.Name, i), Data: u.Data}, Size: len(u.Data)}}
	if len(u.Data) == 0 {
		w.refuse("content", "it is empty")
		return w
	}
	if most := p.cfg.MaxFileBytes; most > 0 && int64(len(u.Data)) > most {
		w.tooLarge("%d bytes are more than %d (input_limits.max_file_size_bytes)", len(u.Data), most)
		return w
	}
	w.found = sniff(u.Data, w.file.Name, u.Type)
	if w.found.problem != "" {
		w.refuse("content", "%s", w.found.problem)
		return w
	}
	if declared := declaredKind(u.Type); declared != "" && !agree(declared, w.found.part) {
		w.refuse("content_type", "%q is said, but the content is %s", clip(u.Type), w.found.mediaType)
		return w
	}
	w.file.Kind, w.file.MediaType = w.found.part, w.found.mediaType
	w.checkSize()
	return w
}

// checkSize checks the limits of the kind.
func (w *work) checkSize() {
	m := w.limits
	var most int
	var setting string
	switch w.file.Kind {
	case chat.Image:
		most, setting = m.Vision.MaxSizeMB, "vision image.max_size_mb"
	case chat.Audio:
		most, setting = m.Audio.MaxSizeMB, "audio max_size_mb"
	case chat.Video:
		most, setting = m.Video.MaxSizeMB, "video max_size_mb"
		longest := m.Video.MaxDuration
		if longest > 0 && w.found.duration > longest {
			w.tooLarge("%.1f seconds are more than %.0f (video max_duration_seconds)", w.found.duration.Seconds(), longest.Seconds())
			return
		}
	case chat.Document:
		most, setting = m.Documents.MaxSizeMB, "documents max_size_mb"
	}
	const mega = 1 << 20
	if most > 0 && w.file.Size > most*mega {
		w.tooLarge("%.1f MiB are more than %d (%s)", float64(w.file.Size)/mega, most, setting)
	}
}

// finish does what takes memory and time, in one of the formation's slots.
func (p *Preparer) finish(ctx context.Context, w *work) error {
	switch {
	case w.file.Kind == chat.Image:
		return p.image(ctx, w)
	case w.found.format != "":
		return p.document(ctx, w)
	case w.file.Kind == chat.Document:
		w.plainText()
	}
	return nil
}

// enter waits for a slot.
func (p *Preparer) enter(ctx context.Context) (leave func(), err error) {
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// image brings an image within the bounds of the settings. One that fits is
// left as it came.
func (p *Preparer) image(ctx context.Context, w *work) error {
	s := w.limits.Vision
	width, height, turn, _, err := measure(w.file.Data)
	if err != nil {
		w.refuse("content", "%s", err)
		w.refusal.TooLong = errors.Is(err, errTooManyPixels)
		return nil
	}
	if !s.Resize || !(bounds{s.MaxWidth, s.MaxHeight}).needed(width, height, turn) {
		return nil
	}
	leave, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	data, mediaType, err := p.cfg.Worker.Fit(ctx, w.file.Data, s.MaxWidth, s.MaxHeight)
	if problem, ok := errors.AsType[*BadFileError](err); ok {
		w.refuse("content", "%s", problem.Text)
		return nil
	}
	if err == nil {
		w.file.Data, w.file.MediaType = data, mediaType
	}
	return err
}

// document has the text of a document read.
func (p *Preparer) document(ctx context.Context, w *work) error {
	leave, err := p.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	text, err := p.cfg.Worker.Text(ctx, w.found.format, w.file.Data, MaxText)
	if problem, ok := errors.AsType[*BadFileError](err); ok {
		w.refuse("content", "its text cannot be read: %s", problem.Text)
		return nil
	}
	if err != nil {
		return err
	}
	keep := w.found.format == document.PDF && p.cfg.KeepPDF
	if !hasWords(text.Content) && !keep {
		what := "there is no text in it"
		if w.found.format == document.PDF {
			what += ": a scan needs a model that reads PDF files (llm.models documents)"
		}
		w.refuse("content", "%s", what)
		return nil
	}
	w.file.MediaType = text.MediaType
	if hasWords(text.Content) {
		w.file.Text, w.file.Cut = text.Content, text.Cut
	}
	if !keep {
		w.file.Data = nil
	}
	return nil
}

// hasWords tells whether a text says more than where its parts begin.
func hasWords(text string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		mark := strings.HasSuffix(line, "]") && (strings.HasPrefix(line, "[page ") || strings.HasPrefix(line, "[slide "))
		if line != "" && !mark {
			return true
		}
	}
	return false
}

// cleanName makes a name that can stand in a prompt and a note: the last part
// of a path, without control characters.
func cleanName(name string, i int) string {
	const most = 200
	name = strings.Map(func(r rune) rune {
		switch {
		case r < ' ' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029':
			return -1
		case r == '\\':
			return '/'
		}
		return r
	}, name)
	name = strings.TrimSpace(path.Base(strings.TrimSpace(name)))
	if name == "" || name == "." || name == "/" || name == ".." {
		return fmt.Sprintf("file-%d", i+1)
	}
	return clipTo(name, most)
}

func clip(s string) string { return clipTo(s, 64) }

func clipTo(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
