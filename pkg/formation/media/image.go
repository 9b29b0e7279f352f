package media

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/gif" // the formats that image.Decode knows
	"image/jpeg"
	"image/png"

	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // as above
)

// maxPixels bounds an image: four bytes or more each as it is unpacked.
const maxPixels = 40_000_000

// jpegQuality is that of images that were made smaller.
const jpegQuality = 88

var errTooManyPixels = errors.New("it has too many pixels")

// bounds are the most that an image may measure; 0 is no limit.
type bounds struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// measure reads how large an image is, which a few bytes say, before anybody
// unpacks its pixels, and how its camera was held. Its error says in words what
// is wrong with the image.
func measure(data []byte) (w, h, turn int, format string, err error) {
	cfg, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return 0, 0, 0, "", fmt.Errorf("the image is damaged: %w", err)
	}
	if cfg.Width < 1 || cfg.Height < 1 {
		return 0, 0, 0, "", errors.New("the image has no pixels")
	}
	if int64(cfg.Width)*int64(cfg.Height) > maxPixels {
		return 0, 0, 0, "", fmt.Errorf("%w: %d x %d are more than %d million", errTooManyPixels, cfg.Width, cfg.Height, maxPixels/1_000_000)
	}
	turn = 1
	if format == "jpeg" {
		turn = orientation(data)
	}
	return cfg.Width, cfg.Height, turn, format, nil
}

// needed tells whether an image has to be made anew: because it is too large, or
// would be seen lying on its side.
func (b bounds) needed(w, h, turn int) bool {
	if turn >= 5 { // its sides change places
		w, h = h, w
	}
	return turn != 1 || b.Width > 0 && w > b.Width || b.Height > 0 && h > b.Height
}

// fit makes an image anew, within the bounds and upright.
func (b bounds) fit(data []byte) (out []byte, mediaType string, err error) {
	w, h, turn, format, err := measure(data)
	if err != nil {
		return nil, "", err
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, "", fmt.Errorf("the image is damaged: %w", err)
	}
	if b.needed(w, h, turn) {
		img = upright(b.shrink(img, turn), turn)
	}
	return encode(img, format)
}

// shrink makes an image fit, keeping its proportions: by whole steps, averaging
// the pixels of each, and then by less than half between pixels. That takes no
// memory beyond the result, unlike the kernels of the library.
func (b bounds) shrink(img image.Image, turn int) image.Image {
	maxW, maxH := b.Width, b.Height
	if turn >= 5 {
		maxW, maxH = maxH, maxW
	}
	w, h := img.Bounds().Dx(), img.Bounds().Dy()
	scale := 1.0
	if maxW > 0 && w > maxW {
		scale = float64(maxW) / float64(w)
	}
	if maxH > 0 && h > maxH {
		scale = min(scale, float64(maxH)/float64(h))
	}
	if scale == 1 {
		return img
	}
	toW, toH := max(int(float64(w)*scale+0.5), 1), max(int(float64(h)*scale+0.5), 1)
	if step := int(1 / scale); step > 1 {
		img = average(img, step)
	}
	out := image.NewNRGBA(image.Rect(0, 0, toW, toH))
	draw.ApproxBiLinear.Scale(out, out.Bounds(), img, img.Bounds(), draw.Src, nil)
	return out
}

// average returns img with each square of step pixels a side as one.
func average(img image.Image, step int) image.Image {
	b := img.Bounds()
	w, h := max(b.Dx()/step, 1), max(b.Dy()/step, 1)
	stepX, stepY := min(step, b.Dx()), min(step, b.Dy())
	out := image.NewNRGBA64(image.Rect(0, 0, w, h))
	source, fast := img.(image.RGBA64Image)
	n := uint64(stepX) * uint64(stepY)
	for y := range h {
		for x := range w {
			var r, g, bl, a uint64
			for dy := range stepY {
				for dx := range stepX {
					at := image.Pt(b.Min.X+x*stepX+dx, b.Min.Y+y*stepY+dy)
					var c color.RGBA64
					if fast {
						c = source.RGBA64At(at.X, at.Y)
					} else {
						cr, cg, cb, ca := img.At(at.X, at.Y).RGBA()
						c = color.RGBA64{uint16(cr), uint16(cg), uint16(cb), uint16(ca)}
					}
					r, g, bl, a = r+uint64(c.R), g+uint64(c.G), bl+uint64(c.B), a+uint64(c.A)
				}
			}
			out.Set(x, y, color.RGBA64{uint16(r / n), uint16(g / n), uint16(bl / n), uint16(a / n)})
		}
	}
	return out
}

// upright turns an image by what its camera noted (1 to 8, as in EXIF).
func upright(img image.Image, turn int) image.Image {
	if turn < 2 || turn > 8 {
		return img
	}
	b := img.Bounds()
	w, h := b.Dx(), b.Dy()
	outW, outH := w, h
	if turn >= 5 {
		outW, outH = h, w
	}
	out := image.NewNRGBA(image.Rect(0, 0, outW, outH))
	for y := range outH {
		for x := range outW {
			fromX, fromY := x, y
			switch turn {
			case 2:
				fromX = w - 1 - x
			case 3:
				fromX, fromY = w-1-x, h-1-y
			case 4:
				fromY = h - 1 - y
			case 5:
				fromX, fromY = y, x
			case 6:
				fromX, fromY = y, h-1-x
			case 7:
				fromX, fromY = w-1-y, h-1-x
			case 8:
				fromX, fromY = w-1-y, x
			}
			out.Set(x, y, img.At(b.Min.X+fromX, b.Min.Y+fromY))
		}
	}
	return out
}

// encode writes an image anew: photographs as JPEG, what may be see-through or
// drawn as PNG.
func encode(img image.Image, format string) (out []byte, mediaType string, err error) {
	var b bytes.Buffer
	if opaque, ok := img.(interface{ Opaque() bool }); format == "jpeg" || format == "webp" && ok && opaque.Opaque() {
		mediaType = "image/jpeg"
		err = jpeg.Encode(&b, img, &jpeg.Options{Quality: jpegQuality})
	} else {
		mediaType = "image/png"
		err = png.Encode(&b, img)
	}
	if err != nil {
		return nil, "", fmt.Errorf("the image cannot be written: %w", err)
	}
	return b.Bytes(), mediaType, nil
}

// orientation reads from a JPEG how its camera was held; 1 is upright, as is
// one that does not say.
func orientation(data []byte) int {
	const start, exif, scan = 0xd8, 0xe1, 0xda
	if len(data) < 4 || data[1] != start {
		return 1
	}
	for at := 2; at+4 <= len(data) && data[at] == 0xff && data[at+1] != scan; {
		size := int(binary.BigEndian.Uint16(data[at+2:]))
		if size < 2 || at+2+size > len(data) {
			return 1
		}
		if segment := data[at+4 : at+2+size]; data[at+1] == exif && hasAt(segment, 0, "Exif\x00\x00") {
			return tiffOrientation(segment[6:])
		}
		at += 2 + size
	}
	return 1
}

// tiffOrientation finds the orientation in the first directory of a TIFF header.
func tiffOrientation(b []byte) int {
	const tag, entry, head = 0x0112, 12, 8
	var order binary.ByteOrder = binary.BigEndian
	switch {
	case len(b) < head:
		return 1
	case hasAt(b, 0, "II"):
		order = binary.LittleEndian
	}
	at := int64(order.Uint32(b[4:]))
	if at+2 > int64(len(b)) {
		return 1
	}
	entries := b[at+2:]
	for range order.Uint16(b[at:]) {
		if len(entries) < entry {
			return 1
		}
		if order.Uint16(entries) == tag {
			if v := order.Uint16(entries[8:]); v >= 1 && v <= 8 {
				return int(v)
			}
			return 1
		}
		entries = entries[entry:]
	}
	return 1
}
