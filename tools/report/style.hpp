// The looks of a report: light and dark, wide and narrow, screen and paper.
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

}  // namespace galvatron::simulate::report
