
// Sorts and filters the queries, and draws the time lines. The page can be read without it.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);

  // ---- Queries ----

  const TEXT_KEYS = new Set(["rank", "text"]);

  function queries() {
    const table = document.getElementById("query-table");
    if (!table) return;
    const form = document.getElementById("query-filter");
    const count = document.getElementById("query-count");
    const none = document.getElementById("no-query");
    const rows = Array.from(table.tBodies).map((body) => ({ body, query: data.queries[Number(body.dataset.index)] }));
    const heads = Array.from(table.tHead.rows[0].cells);
    let sort = { key: "impact", ascending: false };

    // Missing values come last in both directions; equal ones keep the order of the page.
    function compare(one, other) {
      const a = one.query[sort.key], b = other.query[sort.key];
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "string" ? a.localeCompare(b, "en") : a - b;
      return (sort.ascending ? order : -order) || one.body.dataset.index - other.body.dataset.index;
    }

    function sortBy(key, ascending) {
      sort = { key, ascending };
      const before = rows.slice();
      rows.sort(compare);
      // Moving thousands of rows takes long, and at first they have their order.
      if (rows.some((row, index) => row !== before[index])) table.append(...rows.map((row) => row.body));
      for (const head of heads) {
        if (head.dataset.key === key) head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      }
      form.elements.sort.value = key;
    }

    function filter() {
      const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const verdicts = new Set(Array.from(form.querySelectorAll("[name=verdict]:checked"), (box) => box.value));
      let shown = 0;
      for (const { body, query } of rows) {
        const text = query.text.toLowerCase();
        body.hidden = !verdicts.has(query.verdict) || !words.every((word) => text.includes(word));
        shown += !body.hidden;
      }
      none.hidden = shown > 0;
      count.textContent = shown === rows.length ? `${shown} queries` : `${shown} of ${rows.length} queries`;
    }

    // A link to a query opens its details, even if the filter hides it.
    function openTarget() {
      const body = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (!body || body.tagName !== "TBODY") return;
      body.hidden = false;
      const details = body.querySelector("details");
      if (details) details.open = true;
      body.scrollIntoView({ block: "start" });
    }

    for (const head of heads) {
      const name = head.querySelector("span");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name.textContent;
      name.replaceWith(button);
      const key = head.dataset.key;
      button.addEventListener("click", () => sortBy(key, sort.key === key ? !sort.ascending : TEXT_KEYS.has(key)));
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target.name === "sort") sortBy(event.target.value, TEXT_KEYS.has(event.target.value));
      else filter();
    });
    window.addEventListener("hashchange", openTarget);
    sortBy(sort.key, sort.ascending);
    filter();
    if (location.hash) openTarget();
  }

  const { digits, FORMATS, mark, clock, yRange, X_INCREMENTS, DASHES } = howdahUnits;

  // ---- Colours ----

  // Paper is white, whatever the screen is.
  const PAPER = { "--base": "#6a7485", "--change": "#1463c4", "--soft": "#444444", "--line": "#cccccc", "--ink": "#111111" };
  let isPrinting = false;
  const color = (name) => isPrinting ? PAPER[name] : getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // ---- Time lines ----

  function timeLines() {
    const plots = Array.from(document.querySelectorAll(".chart"));
    const lengths = data.panels.flatMap((panel) => panel.values.map((values) => values.length));
    const lastCheckpoint = Math.max(0, ...data.checkpoints.map((span) => Math.ceil(span.to / data.bucket_s)));
    const buckets = Math.max(2, lastCheckpoint, ...lengths);
    if (!plots.length || !(data.bucket_s > 0)) return [];
    const times = Array.from({ length: buckets }, (_, bucket) => bucket * data.bucket_s);
    const end = times[buckets - 1];
    const tools = document.getElementById("time-tools");
    const slider = document.getElementById("time-slider");
    const now = document.getElementById("time-now");
    const charts = [];
    let isSyncing = false;

    // The number of a run among those of its side.
    const ordinal = (run) => data.runs.slice(0, run).filter((other) => other.side === data.runs[run].side).length;
    const lineColor = (run) => color(data.runs[run].side === "base" ? "--base" : "--change");

    function setWindow(from, to) {
      const width = Math.min(end, Math.max(to - from, 4 * data.bucket_s));
      const min = Math.max(0, Math.min(from, end - width));
      charts[0].setScale("x", { min, max: min + width });
    }

    function zoom(how) {
      const { min, max } = charts[0].scales.x;
      const width = max - min, middle = (min + max) / 2;
      if (how === "in") setWindow(middle - width / 4, middle + width / 4);
      if (how === "out") setWindow(middle - width, middle + width);
      if (how === "left") setWindow(min - width / 2, max - width / 2);
      if (how === "right") setWindow(min + width / 2, max + width / 2);
      if (how === "all") setWindow(0, end);
    }

    function onScale(chart, key) {
      if (key !== "x" || isSyncing) return;
      isSyncing = true;
      const { min, max } = chart.scales.x;
      for (const other of charts) if (other !== chart) other.setScale("x", { min, max });
      slider.min = String(Math.ceil(min / data.bucket_s));
      slider.max = String(Math.floor(max / data.bucket_s));
      isSyncing = false;
    }

    function onCursor(chart) {
      const bucket = chart.cursor.idx;
      if (chart.output) {
        const parts = [];
        if (bucket !== null && bucket !== undefined) {
          data.runs.forEach((run, index) => {
            const value = chart.data[index + 1][bucket];
            if (!chart.series[index + 1].show || value === null || value === undefined) return;
            const part = document.createElement("span");
            const name = document.createElement("i");
            name.textContent = `${run.name} `;
            part.append(name, chart.format(value));
            parts.push(part);
          });
        }
        chart.output.replaceChildren(...parts);
      }
      if (chart === charts[0]) {
        const has = bucket !== null && bucket !== undefined;
        now.textContent = has ? `at ${clock(times[bucket])}` : "";
        if (has) slider.value = String(bucket);
      }
    }

    // Says with the slider what is otherwise read off the charts.
    function sliderText(bucket) {
      const said = charts.filter((chart) => chart.output).slice(0, 3);
      const words = said.map((chart) => `${chart.name}: ${chart.output.textContent}`);
      return [`at ${clock(times[bucket])}`, ...words].join("; ");
    }

    function base(element, height) {
      const grid = { stroke: () => color("--line"), width: 1 };
      const axis = { stroke: () => color("--soft"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
      return {
        width: Math.max(element.clientWidth, 100),
        height,
        legend: { show: false },
        cursor: { sync: { key: "time", setSeries: false }, drag: { x: true, y: false, setScale: true }, y: false },
        scales: { x: { time: false, range: (_, min, max) => (min < max ? [min, max] : [0, end]) } },
        axes: [
          { ...axis, size: 26, space: 60, incrs: X_INCREMENTS,
            values: (_, splits) => splits.map(clock) },
          { ...axis, size: 66 },
        ],
        hooks: { setScale: [onScale], setCursor: [onCursor] },
      };
    }

    function panelChart(figure) {
      const panel = data.panels[Number(figure.dataset.panel)];
      const element = figure.querySelector(".plot");
      const format = FORMATS[panel.unit] || digits;
      const options = base(element, 150);
      options.scales.y = { range: (_, min, max) => yRange(panel.unit, min, max) };
      options.axes[1].values = (_, splits) => splits.map((split) => mark(format(split)));
      options.axes[1].space = 28;
      if (panel.unit === "bytes_per_second") options.axes[1].incrs = Array.from({ length: 50 }, (_, power) => 2 ** power);
      const lines = data.runs.map((run, index) => ({
        label: run.name,
        stroke: () => lineColor(index),
        width: 1.5,
        dash: DASHES[ordinal(index) % DASHES.length],
        points: { show: false },
      }));
      options.series = [{}, ...lines];
      const columns = data.runs.map((_, index) => {
        const values = panel.values[index] || [];
        return times.map((_, bucket) => (bucket < values.length ? values[bucket] : null));
      });
      const chart = new uPlot(options, [times, ...columns], element);
      chart.output = figure.querySelector(".values");
      chart.format = format;
      chart.name = panel.title;
      return chart;
    }

    function checkpointChart(figure) {
      const element = figure.querySelector(".plot");
      const options = base(element, 110);
      const rows = data.runs.length;
      options.scales.y = { range: [0, rows] };
      options.axes[1].splits = () => data.runs.map((_, run) => rows - run - 0.5);
      options.axes[1].values = () => data.runs.map((run) => run.name);
      options.axes[1].grid = { show: false };
      options.axes[1].ticks = { show: false };
      options.series = [{}, { points: { show: false } }];
      options.hooks.draw = [(chart) => {
        const { ctx } = chart;
        const clip = chart.bbox;
        ctx.save();
        ctx.beginPath();
        ctx.rect(clip.left, clip.top, clip.width, clip.height);
        ctx.clip();
        for (const span of data.checkpoints) {
          const top = chart.valToPos(rows - span.run, "y", true) + 2 * devicePixelRatio;
          const bottom = chart.valToPos(rows - span.run - 1, "y", true) - 2 * devicePixelRatio;
          const part = (from, to, alpha) => {
            const left = chart.valToPos(from, "x", true), right = chart.valToPos(to, "x", true);
            ctx.globalAlpha = alpha;
            ctx.fillRect(left, top, Math.max(right - left, devicePixelRatio), bottom - top);
          };
          ctx.fillStyle = lineColor(span.run);
          const sync = span.sync === null ? span.to : span.sync;
          part(span.from, sync, 0.4);
          part(sync, span.to, 1);
        }
        ctx.restore();
      }];
      const counts = data.runs.map((run, index) => `${run.name} ${data.checkpoints.filter((span) => span.run === index).length}`);
      element.setAttribute("role", "img");
      element.setAttribute("aria-label", `Numbers of checkpoints: ${counts.join(", ")}`);
      return new uPlot(options, [times, times.map(() => null)], element);
    }

    for (const figure of plots) {
      charts.push("checkpoints" in figure.dataset ? checkpointChart(figure) : panelChart(figure));
    }
    tools.addEventListener("click", (event) => {
      const how = event.target.dataset.zoom;
      if (how) zoom(how);
    });
    tools.addEventListener("change", (event) => {
      const run = event.target.dataset.run;
      if (run === undefined) return;
      for (const chart of charts) {
        if (!chart.output) continue;
        chart.setSeries(Number(run) + 1, { show: event.target.checked });
        onCursor(chart);
      }
    });
    slider.addEventListener("input", () => {
      const bucket = Number(slider.value);
      for (const chart of charts) {
        chart.setCursor({ left: chart.valToPos(times[bucket], "x"), top: 10 }, true, false);
      }
      slider.setAttribute("aria-valuetext", sliderText(bucket));
    });
    slider.value = "0";
    setWindow(0, end);

    const resize = new ResizeObserver((entries) => {
      if (isPrinting) return;
      for (const entry of entries) {
        const chart = charts.find((other) => other.root.parentElement === entry.target);
        const width = Math.floor(entry.contentRect.width);
        if (chart && width > 0 && width !== chart.width) chart.setSize({ width, height: chart.height });
      }
    });
    for (const chart of charts) resize.observe(chart.root.parentElement);
    return charts;
  }

  queries();
  const charts = timeLines();
  const redraw = () => charts.forEach((chart) => chart.redraw(false, true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // Printed, the details of changed queries are open.
  let opened = [];
  addEventListener("beforeprint", () => {
    isPrinting = true;
    opened = Array.from(document.querySelectorAll("details[data-changed]:not([open])"));
    opened.forEach((details) => { details.open = true; });
    redraw();
  });
  addEventListener("afterprint", () => {
    isPrinting = false;
    opened.forEach((details) => { details.open = false; });
    redraw();
  });
  document.documentElement.dataset.ready = "";
})();
