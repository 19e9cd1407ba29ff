// The timeline of a report: draws the part that is looked at, and tells of what is pointed at.
//
// The page has its data as JSON: {"length": ticks, "seconds": of them, "kinds": [...], "tracks": [{"name": text,
// "end": of the iteration, "spans": [gap, duration, kind + 16 if critical, micro-batch, chunk, ...]}]}, times in ticks.
// The last kind stands for instructions that the page does not have.
#pragma once

namespace galvatron::simulate::report {

inline constexpr const char* script = R"js(
(function () {
  'use strict';
  var data = JSON.parse(document.getElementById('data').textContent);
  var svg = document.getElementById('timeline'), about = document.getElementById('about');
  var NS = svg.namespaceURI, from = 0, to = data.length, geometry = null;
  var colours = { forward: 'forward', backward: 'backward', 'backward input': 'backward', 'backward weight': 'weight',
    'receive activation': 'transfer', 'receive gradient': 'transfer', 'send activation': 'transfer',
    'send gradient': 'transfer', 'reduce gradients': 'gradients', step: 'update', 'left out': 'left-out' };
  data.tracks.forEach(function (track) {
    var raw = track.spans, now = 0, spans = [];
    for (var i = 0; i < raw.length; i += 5) {
      var begin = now + raw[i];
      now = begin + raw[i + 1];
      spans.push({ begin: begin, end: now, wait: raw[i], kind: data.kinds[raw[i + 2] & 15], critical: raw[i + 2] > 15,
        batch: raw[i + 3], chunk: raw[i + 4] });
    }
    track.spans = spans;
  });
  function time(ticks) {
    var s = ticks * data.seconds / data.length, a = Math.abs(s);
    if (a === 0) return '0';
    var unit = a < 1e-6 ? [1e9, ' ns'] : a < 1e-3 ? [1e6, ' us'] : a < 1 ? [1e3, ' ms'] : [1, ' s'], v = s * unit[0];
    return (Math.abs(v) < 9.995 ? v.toFixed(2) : Math.abs(v) < 99.95 ? v.toFixed(1) : v.toFixed(0)) + unit[1];
  }
  // Moments are told in one unit, with as many digits as tell `step` seconds apart.
  var unit = data.seconds < 2e-3 ? [1e6, ' us'] : data.seconds < 2 ? [1e3, ' ms'] : [1, ' s'];
  function moment(ticks, step) {
    var digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step * unit[0]) + 1e-9)));
    return (ticks * data.seconds / data.length * unit[0]).toFixed(digits) + unit[1];
  }
  function element(name, attributes, parent) {
    var e = document.createElementNS(NS, name);
    for (var key in attributes) e.setAttribute(key, attributes[key]);
    if (parent) parent.appendChild(e);
    return e;
  }
  function label(text, x, y, attributes, parent) {
    attributes.x = x;
    attributes.y = y;
    element('text', attributes, parent).textContent = text;
  }
  // The first span that ends after a moment.
  function first(spans, at) {
    var low = 0, high = spans.length;
    while (low < high) {
      var middle = (low + high) >> 1;
      if (spans[middle].end <= at) low = middle + 1; else high = middle;
    }
    return low;
  }
  function draw() {
    var width = Math.max(280, svg.parentNode.clientWidth), narrow = width < 600;
    var left = narrow ? 62 : 128, row = data.tracks.length > 24 ? 18 : 24, top = 22;
    var height = top + data.tracks.length * row + 4, scale = (width - left - 2) / (to - from);
    geometry = { width: width, left: left, row: row, top: top, scale: scale };
    svg.setAttribute('viewBox', '0 0 ' + width + ' ' + height);
    while (svg.firstChild) svg.removeChild(svg.firstChild);
    var hatch = element('pattern', { id: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse',
      patternTransform: 'rotate(45)' }, element('defs', {}, svg));
    element('rect', { width: 6, height: 6, fill: 'var(--page)' }, hatch);
    element('rect', { width: 1.6, height: 6, fill: 'var(--soft)' }, hatch);
    var shown = (to - from) * data.seconds / data.length, most = narrow ? 4 : 10;
    var ten = Math.pow(10, Math.floor(Math.log10(shown / most)));
    var step = ten * [1, 2, 5, 10].find(function (f) { return shown / (ten * f) <= most; });
    var tick = step * data.length / data.seconds;
    for (var at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
      var x = left + (at - from) * scale;
      element('path', { d: 'M' + x.toFixed(1) + ' ' + (top - 4) + 'V' + height, stroke: 'var(--line)' }, svg);
      if (x < width - 44) label(moment(at, step), x + 3, 12, { 'font-size': 11, fill: 'var(--soft)' }, svg);
    }
    data.tracks.forEach(function (track, index) {
      var y = top + index * row, h = row - 4, paths = {}, critical = '', texts = [];
      label(narrow ? track.brief : track.name, 0, y + h / 2 + 4, { 'font-size': narrow ? 11 : 12, fill: 'var(--text)' },
        svg);
      element('rect', { x: left, y: y, width: Math.max(0, (Math.min(to, track.end) - from) * scale), height: h,
        fill: 'var(--waiting)' }, svg);
      for (var i = first(track.spans, from); i < track.spans.length && track.spans[i].begin < to; ++i) {
        var s = track.spans[i], a = left + Math.max(0, (s.begin - from) * scale);
        var b = Math.min(width - 2, left + (s.end - from) * scale), w = Math.max(0.4, b - a - (b - a > 5 ? 0.6 : 0));
        var name = colours[s.kind];
        if (s.batch % 2 && (name === 'forward' || name === 'backward' || name === 'weight')) name += '2';
        var box = 'M' + a.toFixed(2) + ' ' + y + 'h' + w.toFixed(2) + 'v' + h + 'h-' + w.toFixed(2) + 'z';
        paths[name] = (paths[name] || '') + box;
        if (s.critical) critical += 'M' + a.toFixed(2) + ' ' + (y + h - 2) + 'h' + w.toFixed(2) + 'v3h-' + w.toFixed(2) + 'z';
        if (w > 18 && name !== 'left-out' && colours[s.kind] !== 'transfer' && s.kind !== 'step' && s.kind !== 'reduce gradients')
          texts.push([s.batch + (track.chunks > 1 && w > 34 ? '.' + s.chunk : ''), a + w / 2]);
      }
      for (var key in paths) {
        element('path', { d: paths[key], fill: key === 'left-out' ? 'url(#hatch)' : 'var(--' + key + ')' }, svg);
      }
      if (critical) element('path', { d: critical, fill: 'var(--critical)' }, svg);
      texts.forEach(function (t) {
        label(t[0], t[1].toFixed(1), y + h / 2 + 4, { 'font-size': 10.5, fill: 'var(--onblock)', 'text-anchor': 'middle' },
          svg);
      });
    });
    document.getElementById('shown').textContent = moment(from, step / 10) + ' to ' + moment(to, step / 10);
  }
  function look(begin, end) {
    var span = Math.min(data.length, Math.max(data.length / 4096, end - begin));
    from = Math.min(Math.max(0, begin), data.length - span);
    to = from + span;
    draw();
  }
  function zoom(factor, centre) {
    var middle = centre === undefined ? (from + to) / 2 : centre;
    look(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }
  function at(event) {
    var box = svg.getBoundingClientRect(), k = geometry.width / box.width;
    return { moment: from + ((event.clientX - box.left) * k - geometry.left) / geometry.scale,
      track: Math.floor(((event.clientY - box.top) * k - geometry.top) / geometry.row) };
  }
  function tell(event) {
    var p = at(event), track = data.tracks[p.track];
    if (!track || p.moment < from || p.moment > to) return;
    var spans = track.spans, s = spans[first(spans, p.moment)];
    about.textContent = '';
    var bold = document.createElement('b'), text = '';
    if (s && s.begin <= p.moment && s.kind === 'left out') {
      bold.textContent = track.name + ': left out of this page';
      text = ' from ' + moment(s.begin, data.seconds / 1e4) + ' to ' + moment(s.end, data.seconds / 1e4) +
        ', as there are too many instructions to show';
    } else if (p.moment > track.end) {
      bold.textContent = track.name + ': ended';
    } else if (s && s.begin <= p.moment) {
      bold.textContent = track.name + ': ' + s.kind +
        (s.kind === 'step' || s.kind === 'reduce gradients' ? '' : ' of micro-batch ' + s.batch) +
        (track.chunks > 1 ? ', chunk ' + s.chunk : '');
      var fine = data.seconds / 1e4;
      text = ' from ' + moment(s.begin, fine) + ' to ' + moment(s.end, fine) + ', ' + time(s.end - s.begin) +
        (s.wait > 0 ? ', after waiting for ' + time(s.wait) : '') + (s.critical ? '; on the critical path' : '');
    } else {
      bold.textContent = track.name + ': waiting';
      if (s) text = ' for ' + time(s.wait) + ', then ' + s.kind + ' of micro-batch ' + s.batch;
    }
    about.appendChild(bold);
    about.appendChild(document.createTextNode(text));
  }
  var drag = null;
  svg.addEventListener('pointerdown', function (e) { drag = { x: e.clientX, from: from, to: to }; tell(e); });
  svg.addEventListener('pointermove', function (e) {
    if (!drag) { tell(e); return; }
    var k = geometry.width / svg.getBoundingClientRect().width, d = (e.clientX - drag.x) * k / geometry.scale;
    if (drag.to - drag.from < data.length) look(drag.from - d, drag.to - d);
  });
  ['pointerup', 'pointercancel', 'pointerleave'].forEach(function (n) {
    svg.addEventListener(n, function () { drag = null; });
  });
  svg.addEventListener('wheel', function (e) {
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, at(e).moment);
  }, { passive: false });
  svg.addEventListener('keydown', function (e) {
    var w = (to - from) / 8;
    if (e.key === '+' || e.key === '=') zoom(0.5);
    else if (e.key === '-') zoom(2);
    else if (e.key === '0') look(0, data.length);
    else if (e.key === 'ArrowLeft') look(from - w, to - w);
    else if (e.key === 'ArrowRight') look(from + w, to + w);
    else return;
    e.preventDefault();
  });
  document.getElementById('in').addEventListener('click', function () { zoom(0.5); });
  document.getElementById('out').addEventListener('click', function () { zoom(2); });
  document.getElementById('left').addEventListener('click', function () { look(from - (to - from) / 3, to - (to - from) / 3); });
  document.getElementById('right').addEventListener('click', function () { look(from + (to - from) / 3, to + (to - from) / 3); });
  document.getElementById('all').addEventListener('click', function () { look(0, data.length); });
  window.addEventListener('resize', draw);
  draw();
})();
)js";

}  // namespace galvatron::simulate::report
