
// How values are written and drawn, for all scripts of reports.
const howdahUnits = (() => {
  "use strict";
  const digits = (value) => {
    const size = Math.abs(value);
    return size >= 100 || size === 0 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
  };
  function scaled(value, step, units) {
    let unit = 0;
    while (Math.abs(value) >= step * 0.9995 && unit + 1 < units.length) { value /= step; unit += 1; }
    return `${digits(value)} ${units[unit]}`;
  }
  const FORMATS = {
    per_second: (value) => `${scaled(value, 1000, ["", "k", "M"]).trim()}/s`,
    micros: (value) => scaled(value, 1000, ["µs", "ms", "s"]),
    share: (value) => `${(value * 100).toFixed(Math.abs(value) < 0.1 || value > 0.9 ? 1 : 0)} %`,
    bytes_per_second: (value) => `${scaled(value, 1024, ["B", "KiB", "MiB", "GiB"])}/s`,
    number: digits,
  };
  // Marks of an axis are round, so that digits after them would only be zeros.
  const mark = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

  function clock(seconds) {
    const whole = Math.floor(seconds);
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    const two = (number) => String(number).padStart(2, "0");
    const part = seconds % 1 ? (seconds % 1).toFixed(1).slice(1) : "";
    return (h ? `${h}:${two(m)}` : String(m)) + `:${two(s)}${part}`;
  }

  // Steps between marks of the time axis, in seconds.
  const X_INCREMENTS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];
  // Runs of one side have different dash patterns.
  const DASHES = [[], [7, 4], [2, 3]];

  function yRange(unit, min, max) {
    if (min === null || max === null) return [0, 1];
    // A hit rate near 100 % would be a straight line on an axis from 0.
    if (unit === "share" && min > 0.8) return [Math.max(0, min - (1 - min) * 0.2 - 0.001), 1];
    if (unit === "share") return [0, Math.min(1, Math.max(max * 1.1, 0.01))];
    return [0, max > 0 ? max * 1.1 : 1];
  }

  return { digits, FORMATS, mark, clock, yRange, X_INCREMENTS, DASHES };
})();
