package mcpcall

import (
	"context"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// toolsTTL is the age up to which listTools returns the cached tool list.
const toolsTTL = 10 * time.Minute

// listTools returns the agent's tools. It returns the cached list if that is younger than toolsTTL, or with fresh than
// Config.RelistAfter, and the agent announced no change. Otherwise it lists the tools. Calls at the same time share one
// listing.
func (c *conn) listTools(ctx context.Context, fresh bool) (ToolSet, error) {
	maxAge := toolsTTL
	if fresh {
		maxAge = c.pool.cfg.RelistAfter
	}
	if set, ok := c.knownTools(maxAge); ok {
		return set, nil
	}
	costs := costsOf(ctx)
	defer measureWait(&costs.Listing, c.pool.cfg.Clock)()
	select {
	case c.listing <- struct{}{}:
		defer func() { <-c.listing }()
	case <-ctx.Done():
		return ToolSet{}, contextError(ctx, StageList)
	}
	if set, ok := c.knownTools(maxAge); ok {
		return set, nil
	}
	costs.Listings++
	c.stale.Store(false) // a later notification concerns a later change

	l := toolList{onCompiled: c.countTools}
	cursors := map[string]bool{}
	for cursor := ""; ; {
		page, err := c.listPage(ctx, cursor)
		if err != nil {
			return ToolSet{}, err
		}
		if !l.addPage(page) || page.cursor == "" {
			break
		}
		cursor = page.cursor
		if cursors[cursor] || len(cursor) > maxCursor || len(cursors) >= maxListPages-1 {
			l.cut = true
			break
		}
		cursors[cursor] = true
	}

	defer c.countTools()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tools != nil && l.keepCompiled(c.tools.Tools) {
		c.log.Info("an agent's tools changed", "tools", len(l.tools))
	}
	if l.cut {
		c.log.Warn("an agent's list of tools is longer than is read", "tools", len(l.tools))
	}
	c.tools = &ToolSet{Tools: l.tools, Server: c.server, Protocol: c.protocol, Listed: c.pool.cfg.Clock(), Cut: l.cut}
	return c.copyTools(), nil
}

// countTools reports to the pool by how much the memory of the tool list changed. The memory grows when a schema is
// compiled, which happens when the schema is first used.
func (c *conn) countTools() {
	c.mu.Lock()
	bytes := int64(0)
	if c.tools != nil {
		for _, t := range c.tools.Tools {
			bytes += toolBytes + int64(len(t.Name)+len(t.InputSchema)) + t.schema.Size()
		}
	}
	more := bytes - c.listed
	c.listed = bytes
	c.mu.Unlock()
	c.pool.countHeld(c, more)
}

// forgetTools drops the tool list with its compiled schemas, to release their memory. The next listTools lists the
// tools again.
func (c *conn) forgetTools() {
	c.mu.Lock()
	c.tools = nil
	c.mu.Unlock()
	c.countTools()
}

// knownTools returns the cached tool list. It returns false if no list is cached, if it is maxAge old or older, or if
// the agent announced a change.
func (c *conn) knownTools(maxAge time.Duration) (ToolSet, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tools == nil || c.stale.Load() || c.pool.cfg.Clock().Sub(c.tools.Listed) >= maxAge {
		return ToolSet{}, false
	}
	return c.copyTools(), true
}

// copyTools returns a copy of the cached tool list. The caller holds c.mu.
func (c *conn) copyTools() ToolSet {
	set := *c.tools
	set.Tools = slices.Clone(set.Tools)
	return set
}

// listPage fetches the page of tools/list at cursor. The cursor of the first page is empty.
func (c *conn) listPage(ctx context.Context, cursor string) (toolPage, error) {
	response, err := c.recordRequest(ctx, func(ctx context.Context) error {
		var request mcp.ListToolsRequest
		request.Params.Cursor = mcp.Cursor(cursor)
		_, err := c.client.ListToolsByPage(ctx, request)
		return err
	})
	c.noteResponse(ctx, response)
	if response.Result == nil {
		return toolPage{}, c.callError(StageList, ctx, response, err)
	}
	release, err := c.pool.cfg.Decoding.Acquire(ctx, len(response.Result))
	if err != nil {
		return toolPage{}, &CallError{Stage: StageList, Err: err} // no Timeout: the agent answered
	}
	defer release()
	page, readErr := readTools(response.Result, c.mirrorsArguments())
	if readErr != nil {
		return toolPage{}, &CallError{Stage: StageList, Err: readErr}
	}
	page.maskSecrets(c.redact)
	return page, nil
}
