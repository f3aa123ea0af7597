
// Polls the state of a rehearsal, and draws it.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const { digits, FORMATS, mark, clock, yRange, X_INCREMENTS, DASHES } = howdahUnits;
  const byId = (id) => document.getElementById(id);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const or = (value, show) => (value === null || value === undefined ? "–" : show(value));
  // Text that has not changed is not written, so that selections of it stay.
  const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };

  const PHASES = {
    running: ["running", "…", "Running:"],
    passed: ["good", "✓", "Passed:"],
    failed: ["bad", "✕", "Failed:"],
    not_comparable: ["warn", "?", "Not comparable:"],
    stopped: ["bad", "✕", "Stopped:"],
  };
  const STATES = { done: ["✓", "finished"], active: ["▶", "running"], waiting: ["·", "waiting"] };

  // Points by chart and run: `points[chart][run][bucket]`.
  const points = data.charts.map(() => []);
  let from = 0;
  let revision = 0;
  let runs = [];
  let charts = [];
  let buckets = 0;

  // ---- Charts ----

  const ordinal = (run) => runs.slice(0, run).filter((other) => other.side === runs[run].side).length;

  function newChart(index, times) {
    const figure = document.querySelector(`[data-chart="${index}"]`);
    const element = figure.querySelector(".plot");
    const { unit } = data.charts[index];
    const format = unit === "number" ? (value) => mark(digits(value)) : FORMATS[unit];
    const grid = { stroke: () => color("--line"), width: 1 };
    const axis = { stroke: () => color("--soft"), grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
    const output = figure.querySelector(".values");
    const onCursor = (chart) => {
      const bucket = chart.cursor.idx;
      const parts = runs.flatMap((run, number) => {
        const values = chart.data[number + 1];
        // Without a cursor, the newest value.
        let at = bucket;
        if (at === null || at === undefined) for (at = values.length - 1; at > 0 && values[at] === null;) at -= 1;
        const value = values[at];
        if (value === null || value === undefined) return [];
        const part = document.createElement("span");
        const name = document.createElement("i");
        name.textContent = `${run.name} `;
        part.append(name, format(value));
        return [part];
      });
      output.replaceChildren(...parts);
    };
    const lines = runs.map((run, number) => ({
      label: run.name,
      stroke: () => color(run.side === "base" ? "--base" : "--change"),
      width: 1.5,
      dash: DASHES[ordinal(number) % DASHES.length],
      points: { show: false },
    }));
    return new uPlot({
      width: Math.max(element.clientWidth, 100),
      height: 150,
      legend: { show: false },
      cursor: { sync: { key: "time", setSeries: false }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: false }, y: { range: (_, min, max) => yRange(unit, min, max) } },
      axes: [
        { ...axis, size: 26, space: 60, incrs: X_INCREMENTS, values: (_, splits) => splits.map(clock) },
        { ...axis, size: 66, space: 28, values: (_, splits) => splits.map((split) => mark(format(split))) },
      ],
      series: [{}, ...lines],
      hooks: { setCursor: [onCursor], setData: [onCursor] },
    }, columns(index, times), element);
  }

  function columns(chart, times) {
    const column = (run) => {
      const values = points[chart][run] || [];
      return times.map((_, bucket) => (values[bucket] === undefined ? null : values[bucket]));
    };
    return [times, ...runs.map((_, run) => column(run))];
  }

  const resize = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((other) => other.root.parentElement === entry.target);
      const width = Math.floor(entry.contentRect.width);
      if (chart && width > 0 && width !== chart.width) chart.setSize({ width, height: chart.height });
    }
  });

  function draw(state) {
    for (const [run, bucket, values] of state.points) {
      values.forEach((value, chart) => {
        const line = points[chart][run] || (points[chart][run] = []);
        line[bucket] = value;
      });
      buckets = Math.max(buckets, bucket + 1);
    }
    const names = (list) => list.map((run) => run.name).join(" ");
    const isNew = names(state.runs) !== names(runs);
    runs = state.runs;
    const count = Math.max(2, buckets, Math.ceil(state.run_s / state.bucket_s));
    const times = Array.from({ length: count }, (_, bucket) => bucket * state.bucket_s);
    if (isNew) {
      for (const chart of charts) { resize.unobserve(chart.root.parentElement); chart.destroy(); }
      charts = data.charts.map((_, index) => newChart(index, times));
      for (const chart of charts) resize.observe(chart.root.parentElement);
    } else if (state.points.length) {
      charts.forEach((chart, index) => chart.setData(columns(index, times)));
    }
  }

  // ---- Texts ----

  function top(state) {
    const [className, sign, phase] = PHASES[state.phase];
    byId("top").className = `top ${className}`;
    setText(byId("sign"), sign);
    setText(byId("phase"), phase);
    setText(byId("headline"), state.headline);
    document.title = `${phase} ${state.headline}`;
    byId("report").hidden = !state.has_report;
    const { replay } = state;
    const isRunning = state.phase === "running";
    const left = `${state.is_left_known ? "" : "at least "}${clock(Math.ceil(state.left_s))}`;
    setText(byId("left"), isRunning ? left : "–");
    setText(byId("elapsed"), clock(Math.floor(state.elapsed_s)));
    setText(byId("runs-done"), `${state.runs.filter((run) => run.state === "done").length} of ${state.runs.length}`);
    setText(byId("events"), replay ? grouped(replay.ended) + (replay.events ? ` of ${grouped(replay.events)}` : "") : "–");
    setText(byId("connections"), replay ? grouped(replay.connections) : "–");
    setText(byId("failed"), replay ? grouped(replay.failed) : "–");
    const progress = byId("progress");
    progress.hidden = !isRunning;
    if (replay && replay.events) progress.value = Math.min(1, replay.ended / replay.events);
    else progress.removeAttribute("value");
  }

  function steps(state) {
    const list = byId("steps");
    while (list.children.length > state.steps.length) list.lastChild.remove();
    state.steps.forEach((step, index) => {
      let item = list.children[index];
      if (!item) {
        item = document.createElement("li");
        item.append(document.createElement("span"), document.createElement("span"), document.createElement("time"));
        item.children[0].setAttribute("role", "img");
        list.append(item);
      }
      const [sign, word] = STATES[step.state];
      item.className = step.state;
      setText(item.children[0], sign);
      item.children[0].setAttribute("aria-label", word);
      setText(item.children[1], step.text);
      const time = step.elapsed_s !== null ? clock(Math.floor(step.elapsed_s))
        : step.estimate_s !== null ? `about ${clock(Math.ceil(step.estimate_s))}` : "?";
      setText(item.children[2], time);
    });
  }

  function runTable(state) {
    const body = byId("run-table").tBodies[0];
    while (body.rows.length > state.runs.length) body.deleteRow(-1);
    state.runs.forEach((run, index) => {
      let row = body.rows[index];
      if (!row) {
        row = body.insertRow();
        const head = document.createElement("th");
        head.scope = "row";
        head.append(document.createElement("span"), document.createElement("span"));
        row.append(head);
        for (let cell = 1; cell < 10; cell += 1) row.insertCell();
      }
      row.cells[0].children[0].className = `key ${run.side}${["", " second", " third"][ordinal(index) % 3]}`;
      setText(row.cells[0].children[1], `${run.name} ${run.side}`);
      const micros = (value) => or(value, FORMATS.micros);
      const cells = [
        STATES[run.state][1],
        or(run.elapsed_s, (seconds) => clock(Math.floor(seconds))),
        or(run.executions, grouped), or(run.failed, grouped), or(run.skipped, grouped),
        micros(run.p50_us), micros(run.p95_us), micros(run.p99_us), micros(run.schedule_error_p99_us),
      ];
      cells.forEach((text, cell) => setText(row.cells[cell + 1], text));
    });
  }

  function notes(state) {
    const section = byId("notes");
    const list = section.querySelector("ul");
    section.hidden = !state.notes.length;
    for (const note of state.notes.slice(list.children.length)) {
      const item = document.createElement("li");
      item.textContent = note;
      list.append(item);
    }
  }

  // ---- Requests ----

  const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

  async function poll() {
    const response = await fetch(`state?after=${revision}&from=${from}`, { cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const state = await response.json();
    // Another rehearsal may have started on the same port.
    if (state.revision < revision || state.points_end < from) { location.reload(); return null; }
    revision = state.revision;
    from = state.points_end;
    draw(state);
    top(state);
    steps(state);
    runTable(state);
    notes(state);
    return state;
  }

  async function follow() {
    for (let failures = 0; ;) {
      try {
        const state = await poll();
        failures = 0;
        byId("lost").hidden = true;
        document.documentElement.dataset.ready = "";
        if (!state || state.phase === "stopped") return;
        // The report is complete in itself, so it stays when the rehearsal's process has ended.
        if (state.has_report) { location.replace("report.html"); return; }
      } catch {
        failures += 1;
        byId("lost").hidden = failures < 3;
        await pause(Math.min(10000, 500 * failures));
      }
    }
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw(false, true)));
  follow();
})();
