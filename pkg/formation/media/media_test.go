package media_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/formation/media/document"
	"github.com/agentformation/service/pkg/formation/media/document/documenttest"
	"github.com/agentformation/service/pkg/manifest"
)

// limits are small, so that tests are.
func limits() manifest.Media {
	return manifest.Media{
		Vision:    manifest.VisionSettings{MaxSizeMB: 1, Resize: true, MaxWidth: 64, MaxHeight: 48},
		Audio:     manifest.AudioSettings{MaxSizeMB: 1},
		Video:     manifest.VideoSettings{MaxSizeMB: 2, MaxDuration: 300e9},
		Documents: manifest.DocumentSettings{MaxSizeMB: 1},
	}
}

func newPreparer(t *testing.T, change func(*media.Config)) *media.Preparer {
	t.Helper()
	cfg := media.Config{MaxFiles: 8, MaxFileBytes: 3 << 20, Media: limits(), Worker: newProcess(t)}
	if change != nil {
		change(&cfg)
	}
	return media.New(cfg)
}

func batch(files ...media.Upload) media.Batch { return media.Batch{Files: files} }

func box(name string, content ...string) string {
	all := strings.Join(content, "")
	return string(binary.BigEndian.AppendUint32(nil, uint32(8+len(all)))) + name + all
}

// mp4 is a film or recording of so many seconds with tracks by handler.
func mp4(brand string, seconds uint32, tracks ...string) []byte {
	header := make([]byte, 100)
	binary.BigEndian.PutUint32(header[12:], 1000)
	binary.BigEndian.PutUint32(header[16:], seconds*1000)
	moov := []string{box("mvhd", string(header))}
	for _, handler := range tracks {
		moov = append(moov, box("trak", box("mdia", box("hdlr", "\x00\x00\x00\x00\x00\x00\x00\x00"+handler+strings.Repeat("\x00", 12)))))
	}
	return []byte(box("ftyp", brand+"\x00\x00\x00\x00") + box("mdat", "film") + box("moov", moov...))
}

func element(id, content string) string {
	return id + "\x10" + string([]byte{byte(len(content) >> 16), byte(len(content) >> 8), byte(len(content))}) + content
}

// webm is a film or recording with tracks of these types.
func webm(seconds float64, types ...byte) []byte {
	var tracks string
	for _, typ := range types {
		tracks += element("\xae", element("\x83", string([]byte{typ})))
	}
	length := string(binary.BigEndian.AppendUint64(nil, math.Float64bits(seconds*1000)))
	info := element("\x15\x49\xa9\x66", element("\x2a\xd7\xb1", "\x0f\x42\x40")+element("\x44\x89", length))
	return []byte(element("\x1a\x45\xdf\xa3", element("\x42\x82", "webm")) +
		"\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff" + info + element("\x16\x54\xae\x6b", tracks) + element("\x1f\x43\xb6\x75", "film"))
}

func picture(w, h int) *image.NRGBA {
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w { // left half red, right half blue
			c := color.NRGBA{255, 0, 0, 255}
			if x >= w/2 {
				c = color.NRGBA{0, 0, 255, 255}
			}
			img.SetNRGBA(x, y, c)
		}
	}
	return img
}

func encoded(t *testing.T, write func(*bytes.Buffer) error) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func pngOf(t *testing.T, w, h int) []byte {
	t.Helper()
	return encoded(t, func(b *bytes.Buffer) error { return png.Encode(b, picture(w, h)) })
}

func TestPrepare_FindsOutWhatAFileIs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		upload   media.Upload
		kind     chat.PartKind
		typ      string
		text     string
		dropData bool
	}{
		{"png", media.Upload{Data: pngOf(t, 8, 8)}, chat.Image, "image/png", "", false},
		{"a lie about a png that stays an image", media.Upload{Type: "image/jpeg", Data: pngOf(t, 8, 8)}, chat.Image, "image/png", "", false},
		{"gif", media.Upload{Data: encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, picture(4, 4), nil) })}, chat.Image, "image/gif", "", false},
		{"wav", media.Upload{Data: []byte("RIFF\x00\x00\x00\x00WAVEfmt ")}, chat.Audio, "audio/wav", "", false},
		{"mp3 with tags", media.Upload{Data: []byte("ID3\x04\x00")}, chat.Audio, "audio/mpeg", "", false},
		{"mp3", media.Upload{Data: []byte{0xff, 0xfb, 0x90, 0x64, 0}}, chat.Audio, "audio/mpeg", "", false},
		{"aac", media.Upload{Data: []byte{0xff, 0xf1, 0x50, 0x80}}, chat.Audio, "audio/aac", "", false},
		{"flac", media.Upload{Data: []byte("fLaC\x00")}, chat.Audio, "audio/flac", "", false},
		{"ogg", media.Upload{Data: []byte("OggS\x00\x02OpusHead")}, chat.Audio, "audio/ogg", "", false},
		{"ogg with pictures", media.Upload{Data: []byte("OggS\x00\x02\x80theora")}, chat.Video, "video/ogg", "", false},
		{"speech of a browser", media.Upload{Type: "audio/webm;codecs=opus", Data: webm(3, 2)}, chat.Audio, "audio/webm", "", false},
		{"webm", media.Upload{Data: webm(300, 2, 1)}, chat.Video, "video/webm", "", false},
		{"m4a", media.Upload{Data: mp4("isom", 3, "soun")}, chat.Audio, "audio/mp4", "", false},
		{"mp4", media.Upload{Data: mp4("isom", 300, "vide", "soun")}, chat.Video, "video/mp4", "", false},
		{"mov", media.Upload{Data: mp4("qt  ", 300, "vide")}, chat.Video, "video/quicktime", "", false},
		{"pdf", media.Upload{Type: "application/octet-stream", Data: documenttest.PDF("BT /F1 9 Tf (words) Tj ET")}, chat.Document, document.TypePDF, "[page 1]\nwords", true},
		{"docx", media.Upload{Data: documenttest.DOCX(documenttest.Paragraphs("words"))}, chat.Document, document.TypeDOCX, "words", true},
		{"html", media.Upload{Data: []byte("<!doctype html><p>words")}, chat.Document, document.TypeHTML, "words", true},
		{"html by its name", media.Upload{Name: "a.HTM", Data: []byte("<p>words")}, chat.Document, document.TypeHTML, "words", true},
		{"markdown", media.Upload{Name: "a.md", Data: []byte("# words\r\n")}, chat.Document, "text/markdown", "# words\n", true},
		{"csv in an old character set", media.Upload{Type: "text/csv; charset=x", Data: []byte("caf\xe9;\x80")}, chat.Document, "text/csv", "café;€", true},
		{"text in UTF-16", media.Upload{Data: []byte("\xff\xfew\x00o\x00")}, chat.Document, "text/plain", "wo", true},
		{"json", media.Upload{Data: []byte(` {"a":1}`)}, chat.Document, "text/plain", ` {"a":1}`, true},
		{"json by its look", media.Upload{Data: []byte(`{"a":1}`)}, chat.Document, "application/json", `{"a":1}`, true},
	}
	p := newPreparer(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files, err := p.Prepare(t.Context(), batch(tt.upload))
			if err != nil {
				t.Fatal(err)
			}
			f := files[0]
			if f.Kind != tt.kind || f.MediaType != tt.typ || f.Text != tt.text || (f.Data == nil) != tt.dropData {
				t.Errorf("got %s %s with text %q and %d bytes", f.Kind, f.MediaType, f.Text, len(f.Data))
			}
			if !tt.dropData && !bytes.Equal(f.Data, tt.upload.Data) {
				t.Error("the bytes are others")
			}
		})
	}
}

func TestPrepare_RefusesByNameWithTheLimit(t *testing.T) {
	t.Parallel()
	large := func(head string, size int) []byte { return append([]byte(head), make([]byte, size)...) }
	bomb := pngOf(t, 1, 1)
	binary.BigEndian.PutUint32(bomb[16:], 50_000)
	binary.BigEndian.PutUint32(bomb[20:], 50_000)
	binary.BigEndian.PutUint32(bomb[29:], crc32.ChecksumIEEE(bomb[12:29]))
	tests := []struct {
		name    string
		upload  media.Upload
		want    string
		field   string
		tooLong bool
	}{
		{"empty", media.Upload{Name: "a.txt"}, "files[0] (a.txt): it is empty", "content", false},
		{"over the limit of all", media.Upload{Data: large("OggS\x80theora", 3<<20)}, "are more than 3145728 (input_limits.max_file_size_bytes)", "content", true},
		{"a large image", media.Upload{Data: large("\x89PNG\r\n\x1a\n", 1<<20)}, "1.0 MiB are more than 1 (vision image.max_size_mb)", "content", true},
		{"a large recording", media.Upload{Data: large("ID3", 1<<20)}, "(audio max_size_mb)", "content", true},
		{"a large film", media.Upload{Data: large("OggS\x80theora", 2<<20)}, "(video max_size_mb)", "content", true},
		{"a large document", media.Upload{Data: large("%PDF-", 1<<20)}, "(documents max_size_mb)", "content", true},
		{"a long film", media.Upload{Data: mp4("isom", 301, "vide")}, "301.0 seconds are more than 300 (video max_duration_seconds)", "content", true},
		{"a long film of another kind", media.Upload{Data: webm(301, 1)}, "(video max_duration_seconds)", "content", true},
		{"a bomb of pixels", media.Upload{Data: bomb}, "50000 x 50000 are more than 40 million", "content", true},
		{"a damaged image", media.Upload{Data: []byte("\x89PNG\r\n\x1a\nx")}, "the image is damaged", "content", false},
		{"an image that is damaged inside", media.Upload{Data: pngOf(t, 100, 100)[:120]}, "the image is damaged", "content", false},
		{"heic", media.Upload{Data: []byte(box("ftyp", "heic"))}, "HEIC", "content", false},
		{"old word", media.Upload{Data: []byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1")}, "DOCX, XLSX or PPTX", "content", false},
		{"a program", media.Upload{Type: "text/plain", Data: []byte("\x7fELF\x00\x01")}, "its type is not known", "content", false},
		{"text that says it is an image", media.Upload{Type: "image/png", Data: []byte("hello")}, `"image/png" is said, but the content is text/plain`, "content_type", false},
		{"an image that says it is text", media.Upload{Type: "text/plain", Data: pngOf(t, 1, 1)}, "the content is image/png", "content_type", false},
		{"a zip of something", media.Upload{Data: documenttest.Zip("a", "b")}, "its text cannot be read: it is a ZIP archive", "content", false},
		{"a pdf without words", media.Upload{Data: documenttest.PDF("0 0 1 1 re f")}, "a scan needs a model that reads PDF files (llm.models documents)", "content", false},
		{"a document without words", media.Upload{Data: documenttest.DOCX("")}, "there is no text in it", "content", false},
		{"blank text", media.Upload{Data: []byte(" \n")}, "there is no text in it", "content", false},
		{"a document that hangs its reader", media.Upload{Name: "../../x\x00y.pdf", Data: []byte(hostile + "crash")}, "files[0] (xy.pdf): its text cannot be read: it breaks its reader", "content", false},
	}
	p := newPreparer(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := p.Prepare(t.Context(), batch(tt.upload))
			refused, ok := errors.AsType[*media.RefusedError](err)
			if !ok || len(refused.Refusals) != 1 {
				t.Fatalf("got %v", err)
			}
			r := refused.Refusals[0]
			if !strings.Contains(r.Message, tt.want) || !strings.HasPrefix(r.Message, "files[0] (") || r.Field != tt.field || r.TooLong != tt.tooLong {
				t.Errorf("got %+v, want %q", r, tt.want)
			}
		})
	}
}

func TestPrepare_NamesEveryWrongFile(t *testing.T) {
	t.Parallel()
	_, err := newPreparer(t, nil).Prepare(t.Context(), batch(media.Upload{Name: "a"}, media.Upload{Name: "b", Data: []byte("fine")}, media.Upload{Name: "c", Data: []byte{0}}))
	if err == nil || !strings.Contains(err.Error(), "files[0] (a)") || strings.Contains(err.Error(), "files[1]") || !strings.Contains(err.Error(), "files[2] (c)") {
		t.Errorf("got %v", err)
	}
	_, err = newPreparer(t, nil).Prepare(t.Context(), media.Batch{Files: make([]media.Upload, 9)})
	if err == nil || !strings.Contains(err.Error(), "9 files are more than the 8") {
		t.Errorf("got %v", err)
	}
}

func TestPrepare_KeepsAPDFForAModelThatReadsIt(t *testing.T) {
	t.Parallel()
	p := newPreparer(t, func(c *media.Config) { c.KeepPDF = true })
	scan, report := documenttest.PDF("0 0 1 1 re f"), documenttest.PDF("BT /F1 9 Tf (words) Tj ET")
	files, err := p.Prepare(t.Context(), batch(media.Upload{Data: scan}, media.Upload{Data: report}))
	if err != nil {
		t.Fatal(err)
	}
	part := func(name string, data []byte) chat.Part {
		return chat.Part{Kind: chat.Document, MediaType: document.TypePDF, Name: name, Data: data}
	}
	want := []chat.File{
		{Part: part("file-1", scan), Size: len(scan)},
		{Part: part("file-2", report), Size: len(report), Text: "[page 1]\nwords"},
	}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestPrepare_CutsALongText(t *testing.T) {
	t.Parallel()
	p := newPreparer(t, func(c *media.Config) { c.Media.Documents.MaxSizeMB = 0 })
	long := strings.Repeat("ü", media.MaxText/2) + "ende"
	files, err := p.Prepare(t.Context(), batch(media.Upload{Data: []byte("x" + long)}, media.Upload{Data: []byte("<!doctype html><p>x" + long)}))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !f.Cut || len(f.Text) > media.MaxText || len(f.Text) < media.MaxText-4 {
			t.Errorf("%s: cut %v to %d bytes", f.MediaType, f.Cut, len(f.Text))
		}
	}
}

func TestPrepare_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newPreparer(t, nil).Prepare(ctx, batch(media.Upload{Data: documenttest.PDF("")})); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// exif is a JPEG segment that says how the camera was held.
func exif(order binary.AppendByteOrder, mark string, turn uint16) []byte {
	b := []byte("Exif\x00\x00" + mark)
	b = order.AppendUint16(b, 42)
	b = order.AppendUint32(b, 8)
	b = order.AppendUint16(b, 2)
	b = append(b, make([]byte, 12)...)
	b = order.AppendUint16(b, 0x0112)
	b = order.AppendUint16(b, 3)
	b = order.AppendUint32(b, 1)
	b = order.AppendUint16(b, turn)
	b = append(b, 0, 0)
	return append([]byte{0xff, 0xe1, 0, byte(len(b) + 2)}, b...)
}

func TestPrepare_BringsAnImageWithinItsBoundsUpright(t *testing.T) {
	t.Parallel()
	photo := func(w, h int, segment []byte) []byte {
		data := encoded(t, func(b *bytes.Buffer) error { return jpeg.Encode(b, picture(w, h), nil) })
		return append(append(append([]byte{}, data[:2]...), segment...), data[2:]...)
	}
	red, blue := color.NRGBA{255, 0, 0, 255}, color.NRGBA{0, 0, 255, 255}
	tests := []struct {
		name        string
		data        []byte
		typ         string
		w, h        int
		first, last color.NRGBA // at the upper left and the lower right
	}{
		{"wide", pngOf(t, 640, 160), "image/png", 64, 16, red, blue},
		{"high", pngOf(t, 100, 4800), "image/png", 1, 48, color.NRGBA{}, color.NRGBA{}},
		{"a little too large", pngOf(t, 66, 48), "image/png", 64, 47, red, blue},
		{"a photograph", photo(200, 100, nil), "image/jpeg", 64, 32, red, blue},
		{"upside down", photo(200, 100, exif(binary.BigEndian, "MM", 3)), "image/jpeg", 64, 32, blue, red},
		{"held to the right", photo(200, 100, exif(binary.LittleEndian, "II", 6)), "image/jpeg", 24, 48, red, blue},
		{"held to the left, and small", photo(40, 20, exif(binary.LittleEndian, "II", 8)), "image/jpeg", 20, 40, blue, red},
		{"drawn", encoded(t, func(b *bytes.Buffer) error { return gif.Encode(b, picture(128, 96), nil) }), "image/png", 64, 48, red, blue},
	}
	p := newPreparer(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			files, err := p.Prepare(t.Context(), batch(media.Upload{Data: tt.data}))
			if err != nil {
				t.Fatal(err)
			}
			img, _, err := image.Decode(bytes.NewReader(files[0].Data))
			if err != nil || files[0].MediaType != tt.typ || img.Bounds().Size() != image.Pt(tt.w, tt.h) {
				t.Fatalf("got %s of %v, %v", files[0].MediaType, img.Bounds(), err)
			}
			if tt.first == (color.NRGBA{}) {
				return
			}
			for at, want := range map[image.Point]color.NRGBA{image.Pt(1, 1): tt.first, image.Pt(tt.w-2, tt.h-2): tt.last} {
				if got := color.NRGBAModel.Convert(img.At(at.X, at.Y)).(color.NRGBA); !near(got, want) {
					t.Errorf("at %v it is %v, want %v", at, got, want)
				}
			}
		})
	}
}

func near(a, b color.NRGBA) bool {
	far := func(x, y uint8) bool { return max(x, y)-min(x, y) > 60 }
	return !far(a.R, b.R) && !far(a.G, b.G) && !far(a.B, b.B)
}

func TestPrepare_LeavesImagesWhenResizingIsOff(t *testing.T) {
	t.Parallel()
	p := newPreparer(t, func(c *media.Config) { c.Media.Vision.Resize = false })
	data := pngOf(t, 640, 160)
	files, err := p.Prepare(t.Context(), batch(media.Upload{Data: data}))
	if err != nil || !bytes.Equal(files[0].Data, data) {
		t.Errorf("the image was changed, or %v", err)
	}
}

// worker does nothing: what is fuzzed comes before it.
type worker struct{}

func (worker) Text(context.Context, document.Format, []byte, int) (document.Text, error) {
	return document.Text{Content: "x"}, nil
}

func (worker) Fit(_ context.Context, image []byte, _, _ int) ([]byte, string, error) {
	return image, "image/png", nil
}

func FuzzPrepare(f *testing.F) {
	f.Add("a.mp4", "video/mp4", mp4("isom", 3, "vide"))
	f.Add("a.webm", "", webm(3, 1, 2))
	f.Add("a.csv", "text/csv", []byte("a;b"))
	f.Add("a.jpg", "image/jpeg", append([]byte{0xff, 0xd8}, exif(binary.BigEndian, "MM", 6)...))
	p := media.New(media.Config{MaxFiles: 1, MaxFileBytes: 1 << 20, Media: limits(), Worker: worker{}})
	f.Fuzz(func(t *testing.T, name, typ string, data []byte) {
		files, err := p.Prepare(t.Context(), batch(media.Upload{Name: name, Type: typ, Data: data}))
		if _, ok := errors.AsType[*media.RefusedError](err); err != nil && !ok {
			t.Fatal(err)
		}
		for _, file := range files {
			if file.Name == "" || strings.ContainsAny(file.Name, "/\n\x00") || file.MediaType == "" {
				t.Errorf("%+v", file)
			}
		}
	})
}
