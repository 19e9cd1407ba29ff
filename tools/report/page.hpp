// What a page of a report brings along: its looks, in light and dark, wide and narrow, on screen and paper, and the
// script of its timeline, which draws the part that is looked at, and tells of what is pointed at.
//
// The page has its data as JSON: {"length": ticks, "seconds": of them, "kinds": [...], "tracks": [{"name": text,
// "end": of the iteration, "spans": [gap, duration, kind + 16 if critical, micro-batch, chunk, ...]}]}, times in ticks.
// The last kind stands for instructions that the page does not have.
#pragma once

namespace galvatron::simulate::report {

inline constexpr const char* style = R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --text: #1a1d21; --soft: #59626d; --line: #d8dce1; --accent: #1f5fbf; --bad: #b3261e;
  --compute: #3573c9; --forward: #3573c9; --forward2: #5a90dc; --backward: #2b8a57; --backward2: #4aa877;
  --weight: #8a9a2b; --weight2: #a3b345; --recompute: #8fb8ee; --communication: #e07b2a; --transfer: #f0b429;
  --gradients: #8e4ec6; --update: #0e9aa7; --waiting: #dfe3e8; --kept: #7c8894; --stash: #3573c9; --workspace: #f0b429;
  --critical: #c2185b; --onblock: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14171a; --card: #1d2125; --text: #e6e9ec; --soft: #a0a9b3; --line: #363c43; --accent: #7fb0f5; --bad: #ff8a80;
  --compute: #4a86d8; --forward: #4a86d8; --forward2: #3a6fb8; --backward: #3a9d69; --backward2: #2f8257;
  --weight: #9aab3a; --weight2: #7f8e2c; --recompute: #2f5688; --communication: #e58a42; --transfer: #d9a32c;
  --gradients: #a56bd8; --update: #27adb9; --waiting: #2c3238; --kept: #6b7681; --stash: #4a86d8; --workspace: #d9a32c;
  --critical: #ff6fa5; --onblock: #ffffff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 36px 0 6px; }
h3 { font-size: 15px; margin: 0 0 2px; font-weight: 600; }
p { margin: 4px 0 10px; color: var(--soft); max-width: 110ch; overflow-wrap: anywhere; }
p.lead { color: var(--text); }
.bad { color: var(--bad); font-weight: 600; }
.banner { border: 1px solid var(--bad); border-left-width: 5px; border-radius: 6px; padding: 10px 14px; margin: 14px 0;
  color: var(--text); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 16px 0 4px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tile b { display: block; font-size: 21px; line-height: 1.25; font-weight: 600; }
.tile span { color: var(--soft); font-size: 13px; }
.tile small { display: block; color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); margin-top: 5px;
  padding-top: 4px; }
.scroll { overflow-x: auto; margin: 8px 0; -webkit-overflow-scrolling: touch; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }
th.w, td.w { text-align: left; }
th:first-child, td:first-child { padding-left: 0; position: sticky; left: 0; background: var(--page); }
.side td, .side th { text-align: left; white-space: normal; min-width: 116px; vertical-align: top; }
.side td:first-child, .side th:first-child { min-width: 92px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 10px; font-size: 13px; color: var(--soft); }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  vertical-align: -1px; }
.hatched { background: repeating-linear-gradient(135deg, var(--soft) 0 1.5px, var(--page) 1.5px 5px);
  outline: 1px solid var(--line); }
.bars { display: grid; grid-template-columns: max-content 1fr; gap: 6px 12px; align-items: center; margin: 8px 0 14px;
  font-size: 14px; }
.bars > span { max-width: 40vw; overflow-wrap: anywhere; }
.bar { display: flex; height: 20px; border-radius: 4px; overflow: hidden; background: var(--waiting); }
.bar i { display: block; height: 100%; flex: none; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); gap: 14px; }
.chart { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 8px 10px 4px;
  break-inside: avoid; min-width: 0; }
.chart svg { display: block; width: 100%; height: auto; margin: 4px 0; }
.chart small { color: var(--soft); font-size: 12.5px; display: block; }
svg text { font-family: inherit; }
.tools { display: flex; flex-wrap: wrap; gap: 6px; align-items: center; margin: 6px 0; }
.tools button { font: inherit; font-size: 14px; min-width: 38px; padding: 4px 10px; border-radius: 6px; cursor: pointer;
  border: 1px solid var(--line); background: var(--card); color: var(--text); }
.tools button:focus-visible, #timeline:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.tools span { color: var(--soft); font-size: 13px; }
#timeline { display: block; width: 100%; height: auto; touch-action: pan-y; cursor: grab; user-select: none; }
#about { min-height: 3em; font-size: 14px; color: var(--soft); margin: 4px 0; }
#about b { color: var(--text); }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); padding-top: 10px; }
@media (max-width: 600px) { main { padding: 16px 12px 32px; } h1 { font-size: 21px; }
  .tiles { grid-template-columns: 1fr 1fr; } .tile b { font-size: 18px; } .bars { font-size: 13px; gap: 4px 8px; }
  .charts { grid-template-columns: 1fr 1fr; gap: 8px; } .chart { padding: 6px 8px 4px; } h3 { font-size: 14px; }
  .tools .keys { display: none; } }
@media print { :root { --page: #ffffff; --card: #ffffff; --text: #000000; --soft: #444444; --line: #bbbbbb;
    --waiting: #e6e6e6; --bad: #a00000; }
  body { font-size: 11px; } main { max-width: none; padding: 0; } .tools, #about { display: none; }
  table { font-size: 10px; } th, td { padding: 2px 6px; white-space: normal; position: static; } h2 { break-after: avoid; }
  tr, .bars { break-inside: avoid; } .bar i, .legend i, .hatched { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .charts { grid-template-columns: repeat(3, 1fr); } .scroll { overflow: visible; } }
)css";

inline constexpr const char* script = R"js(
(() => {
  'use strict';
  const element = id => document.getElementById(id);
  const data = JSON.parse(element('data').textContent), svg = element('timeline'), about = element('about');
  const colours = { forward: 'forward', backward: 'backward', 'backward input': 'backward', 'backward weight': 'weight',
    'receive activation': 'transfer', 'receive gradient': 'transfer', 'send activation': 'transfer',
    'send gradient': 'transfer', 'reduce gradients': 'gradients', step: 'update', 'left out': 'left-out' };
  let from = 0, to = data.length, geometry = null, drag = null;
  for (const track of data.tracks) {
    const raw = track.spans;
    let now = 0;
    track.spans = [];
    for (let i = 0; i < raw.length; i += 5) {
      const begin = now + raw[i];
      now = begin + raw[i + 1];
      track.spans.push({ begin, end: now, wait: raw[i], kind: data.kinds[raw[i + 2] & 15], critical: raw[i + 2] > 15,
        batch: raw[i + 3], chunk: raw[i + 4] });
    }
  }
  const seconds = ticks => ticks * data.seconds / data.length;
  const once = span => span.kind === 'step' || span.kind === 'reduce gradients';  // an iteration
  function time(ticks) {
    const s = seconds(ticks), a = Math.abs(s);
    if (a === 0) return '0';
    const [factor, unit] = a < 1e-6 ? [1e9, 'ns'] : a < 1e-3 ? [1e6, 'us'] : a < 1 ? [1e3, 'ms'] : [1, 's'];
    const v = Math.abs(s * factor);
    return `${(s * factor).toFixed(v < 9.995 ? 2 : v < 99.95 ? 1 : 0)} ${unit}`;
  }
  // Moments are told in one unit, with as many digits as tell `step` seconds apart.
  function moment(ticks, step) {
    const [factor, unit] = data.seconds < 2e-3 ? [1e6, 'us'] : data.seconds < 2 ? [1e3, 'ms'] : [1, 's'];
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9)));
    return `${(seconds(ticks) * factor).toFixed(digits)} ${unit}`;
  }
  // The first span that ends after a moment.
  function first(spans, at) {
    let low = 0, high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle].end <= at) low = middle + 1; else high = middle;
    }
    return low;
  }
  const path = (d, fill) => `<path d="${d}" fill="${fill}"/>`;
  const label = (text, x, y, size, colour, more = '') =>
    `<text x="${x}" y="${y}" font-size="${size}" fill="var(--${colour})"${more}>${text}</text>`;
  function draw() {
    const width = Math.max(280, svg.parentNode.clientWidth), narrow = width < 600;
    const left = narrow ? 62 : 128, row = data.tracks.length > 24 ? 18 : 24, h = row - 4, top = 22;
    const height = top + data.tracks.length * row + 4, scale = (width - left - 2) / (to - from);
    geometry = { width, left, row, top, scale };
    let out = '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" ' +
      'patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--page)"/>' +
      '<rect width="1.6" height="6" fill="var(--soft)"/></pattern></defs>';
    const shown = seconds(to - from), most = narrow ? 4 : 10;
    const ten = Math.pow(10, Math.floor(Math.log10(shown / most)));
    const step = ten * [1, 2, 5, 10].find(f => shown / (ten * f) <= most), tick = step * data.length / data.seconds;
    for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
      const x = left + (at - from) * scale;
      out += `<path d="M${x.toFixed(1)} ${top - 4}V${height}" stroke="var(--line)"/>`;
      if (x < width - 44) out += label(moment(at, step), x + 3, 12, 11, 'soft');
    }
    data.tracks.forEach((track, index) => {
      const y = top + index * row, middle = y + h / 2 + 4, boxes = {};
      let critical = '', texts = '';
      out += label(narrow ? track.brief : track.name, 0, middle, narrow ? 11 : 12, 'text') + `<rect x="${left}" y="${y}"
        width="${Math.max(0, (Math.min(to, track.end) - from) * scale)}" height="${h}" fill="var(--waiting)"/>`;
      for (let i = first(track.spans, from); i < track.spans.length && track.spans[i].begin < to; ++i) {
        const s = track.spans[i], a = left + Math.max(0, (s.begin - from) * scale), colour = colours[s.kind];
        const b = Math.min(width - 2, left + (s.end - from) * scale);
        const size = Math.max(0.4, b - a - (b - a > 5 ? 0.6 : 0)), w = size.toFixed(2);
        const odd = s.batch % 2 && /forward|backward|weight/.test(colour) ? '2' : '';
        boxes[colour + odd] = (boxes[colour + odd] || '') + `M${a.toFixed(2)} ${y}h${w}v${h}h-${w}z`;
        if (s.critical) critical += `M${a.toFixed(2)} ${y + h - 2}h${w}v3h-${w}z`;
        if (size > 18 && colour !== 'left-out' && colour !== 'transfer' && !once(s))
          texts += label(s.batch + (track.chunks > 1 && size > 34 ? '.' + s.chunk : ''), (a + size / 2).toFixed(1), middle,
            10.5, 'onblock', ' text-anchor="middle"');
      }
      for (const [colour, d] of Object.entries(boxes))
        out += path(d, colour === 'left-out' ? 'url(#hatch)' : `var(--${colour})`);
      out += (critical && path(critical, 'var(--critical)')) + texts;
    });
    svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    svg.innerHTML = out;
    element('shown').textContent = `${moment(from, step / 10)} to ${moment(to, step / 10)}`;
  }
  function look(begin, end) {
    const span = Math.min(data.length, Math.max(data.length / 4096, end - begin));
    from = Math.min(Math.max(0, begin), data.length - span);
    to = from + span;
    draw();
  }
  function zoom(factor, centre = (from + to) / 2) {
    look(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }
  const move = share => look(from + (to - from) * share, to + (to - from) * share);
  function at(event) {
    const box = svg.getBoundingClientRect(), k = geometry.width / box.width;
    return { moment: from + ((event.clientX - box.left) * k - geometry.left) / geometry.scale,
      track: data.tracks[Math.floor(((event.clientY - box.top) * k - geometry.top) / geometry.row)] };
  }
  function tell(event) {
    const p = at(event), track = p.track;
    if (!track || p.moment < from || p.moment > to) return;
    const s = track.spans[first(track.spans, p.moment)], fine = data.seconds / 1e4;
    const during = s && s.begin <= p.moment && ` from ${moment(s.begin, fine)} to ${moment(s.end, fine)}`;
    let what = 'waiting', more = '';
    if (during && s.kind === 'left out') {
      what = 'left out of this page';
      more = during + ', as there are too many instructions to show';
    } else if (p.moment > track.end) {
      what = 'ended';
    } else if (during) {
      what = s.kind + (once(s) ? '' : ' of micro-batch ' + s.batch) + (track.chunks > 1 ? ', chunk ' + s.chunk : '');
      more = `${during}, ${time(s.end - s.begin)}` + (s.wait > 0 ? ', after waiting for ' + time(s.wait) : '') +
        (s.critical ? '; on the critical path' : '');
    } else if (s) {
      more = ` for ${time(s.wait)}, then ${s.kind} of micro-batch ${s.batch}`;
    }
    const bold = document.createElement('b');
    bold.textContent = `${track.name}: ${what}`;
    about.replaceChildren(bold, more);
  }
  svg.addEventListener('pointerdown', e => { drag = { x: e.clientX, from, to }; tell(e); });
  svg.addEventListener('pointermove', e => {
    if (!drag) return tell(e);
    const d = (e.clientX - drag.x) * geometry.width / svg.getBoundingClientRect().width / geometry.scale;
    if (drag.to - drag.from < data.length) look(drag.from - d, drag.to - d);
  });
  for (const name of ['pointerup', 'pointercancel', 'pointerleave']) svg.addEventListener(name, () => { drag = null; });
  svg.addEventListener('wheel', e => {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, at(e).moment);
  }, { passive: false });
  const buttons = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-1 / 3), right: () => move(1 / 3),
    all: () => look(0, data.length) };
  for (const [id, act] of Object.entries(buttons)) element(id).addEventListener('click', act);
  const keys = { '+': buttons.in, '=': buttons.in, '-': buttons.out, '0': buttons.all, ArrowLeft: () => move(-1 / 8),
    ArrowRight: () => move(1 / 8) };
  svg.addEventListener('keydown', e => {
    if (!keys[e.key]) return;
    keys[e.key]();
    e.preventDefault();
  });
  window.addEventListener('resize', draw);
  draw();
})();
)js";

}  // namespace galvatron::simulate::report
