package httpapi

import (
	"fmt"
	"mime"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
)

// download sends a formation's current version as a zip file, which is made as
// it is sent. A client that stops reading for long loses its connection.
func (a *API) download(c echo.Context) error {
	db := c.QueryParam("db")
	d, err := a.cfg.Deploy.Download(c.Request().Context(), httpx.Param(c, "id"), db == "true" || db == "1")
	if err != nil {
		return err
	}
	defer d.Close()
	res := c.Response()
	res.Header().Set("Content-Type", "application/zip")
	res.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": d.Name}))
	res.WriteHeader(http.StatusOK)
	if _, err := d.WriteTo(&patient{w: res, rc: http.NewResponseController(res.Writer)}); err != nil {
		return fmt.Errorf("send download: %w", err)
	}
	return nil
}

// downloadPatience is how long a client may take for one write.
const downloadPatience = time.Minute

// patient gives each write its own deadline. The next request on the connection
// takes the last one back.
type patient struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// Write sends p.
func (p *patient) Write(b []byte) (int, error) {
	_ = p.rc.SetWriteDeadline(time.Now().Add(downloadPatience))
	return p.w.Write(b)
}
