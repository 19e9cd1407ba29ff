// The timeline of a report: draws the part that is looked at, and tells of what is pointed at.
//
// The page has its data as JSON: {"length": ticks, "seconds": of them, "kinds": [...], "tracks": [{"name": text,
// "end": of the iteration, "spans": [gap, duration, kind + 16 if critical, micro-batch, chunk, ...]}]}, times in ticks.
// The last kind stands for instructions that the page does not have.
#pragma once

namespace galvatron::simulate::report {

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
