// @ts-check
// Whether texts of runs are kept, and the switch by which they are from now on.

import { html, nothing } from "./lit.js";
import { get, me } from "./api.js";
import { fail, notice, question } from "./views/shared.js";

/** As `GET admin/record` says it; null where this key may not ask. @type {any} */
let facts = null;
let redraw = () => {};

/** @param {() => void} onChange */
export async function load(onChange) {
  redraw = onChange;
  facts = null;
  if (me?.admin) {
    try {
      facts = await get("admin/record");
    } catch {
      // an older server, or a key that may do less by now: no switch is shown
    }
  }
  redraw();
}

const WORDS = { on: "kept", off: "not kept" };
const word = () => (facts.in_memory ? "in memory" : WORDS[/** @type {"on" | "off"} */ (facts.content)]);

/** The button of the bar. */
export const button = () => (facts ? html`<button class="quiet" title="What becomes of texts: questions, answers, arguments, results" @click=${choose}>Texts: ${word()}</button>` : nothing);

async function choose() {
  const isOn = facts.content === "on";
  const said = facts.in_memory
    ? "Texts of the newest runs are in memory, for whoever is at this machine, until the server ends."
    : isOn
      ? `Texts are kept${facts.is_written ? ", in the data folder" : " in memory"}: whoever may see a run may read them.`
      : "Texts are not kept, but for what is typed into the Playground: that is in memory, for its own key alone.";
  const given = await question(
    "Texts of runs",
    html`<p>${facts.fixed && facts.content === "off" ? "Texts are not kept." : said}</p>
      ${facts.fixed
        ? html`<p>${facts.fixed}</p>`
        : html`<label class="check"><input type="checkbox" name="content" .checked=${isOn} /> keep texts from now on</label>
            <p><small>Until the server ends, for all keys, masked, ${facts.is_written || !isOn ? "in the data folder where there is one" : "in memory"}. <code>record: {content: on}</code> in the config says it for good, <code>off</code> that none are kept at all.</small></p>`}`,
    facts.fixed ? "Close" : "Set it",
  );
  if (!given || facts.fixed) return;
  try {
    facts = await get("admin/record", { method: "POST", json: { content: given.content === "on" ? "on" : "off" } });
    notice(facts.content === "on" ? "Texts are kept from now on." : "Texts are kept no longer.");
  } catch (failure) {
    fail(failure);
  }
  redraw();
}
