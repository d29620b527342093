// @ts-check
// A form for a tool's arguments. What the schema says plainly gets a field of its own; for the rest there is JSON.

import { html, nothing } from "../lit.js";

/** @param {any} schema @returns {[string, any][] | null} its fields, or null where it is not a plain object */
function fieldsOf(schema) {
  const plain = schema && typeof schema === "object" && schema.properties && typeof schema.properties === "object";
  if (!plain || schema.anyOf || schema.oneOf || schema.allOf || schema.$ref) return null;
  return Object.entries(schema.properties);
}

/** @param {any} schema */
function kindOf(schema) {
  if (!schema || typeof schema !== "object") return "json";
  if (choicesOf(schema)) return "enum";
  if (schema.type === "array" && choicesOf(schema.items)) return "several";
  return ["string", "integer", "number", "boolean"].includes(schema.type) ? schema.type : "json";
}

/** The values that may be chosen, with their titles; null where any may be given. @param {any} schema @returns {[any, string][] | null} */
function choicesOf(schema) {
  if (Array.isArray(schema?.enum)) return schema.enum.map((each) => [each, String(each)]);
  if (!Array.isArray(schema?.oneOf) || !schema.oneOf.length || !schema.oneOf.every((each) => each && "const" in each)) return null;
  return schema.oneOf.map((each) => [each.const, String(each.title ?? each.const)]);
}

/** The arguments as the schema's defaults have them, for the editor. @param {any} schema */
export function template(schema) {
  const fields = fieldsOf(schema) ?? [];
  const required = new Set(schema?.required ?? []);
  const filled = fields.filter(([name, each]) => required.has(name) || each?.default !== undefined);
  const empty = { string: "", integer: 0, number: 0, boolean: false, json: null, several: [] };
  const value = (each) =>
    each?.default ?? (kindOf(each) === "enum" ? choicesOf(each)?.[0]?.[0] : empty[/** @type {keyof typeof empty} */ (kindOf(each))]);
  return JSON.stringify(Object.fromEntries(filled.map(([name, each]) => [name, value(each)])), null, 2);
}

/** @param {string} name @param {any} schema @param {boolean} required @param {boolean} secret */
function field(name, schema, required, secret) {
  const initial = schema?.default;
  const kind = kindOf(schema);
  let input;
  if (kind === "enum")
    input = html`<select name=${name} ?required=${required}>
      ${required && initial !== undefined ? nothing : html`<option value=""></option>`}
      ${choicesOf(schema)?.map(([each, title]) => html`<option value=${JSON.stringify(each)} ?selected=${each === initial}>${title}</option>`)}
    </select>`;
  else if (kind === "several")
    input = html`<span class="choices">${choicesOf(schema.items)?.map(
      ([each, title]) => html`<label><input type="checkbox" name=${name} value=${JSON.stringify(each)} ?checked=${initial?.includes(each)} /> ${title}</label>`,
    )}</span>`;
  else if (kind === "boolean")
    input = html`<select name=${name} ?required=${required}>
      <option value=""></option>
      ${[true, false].map((each) => html`<option value=${String(each)} ?selected=${each === initial}>${String(each)}</option>`)}
    </select>`;
  else if (kind === "json")
    input = html`<textarea name=${name} rows="3" placeholder="JSON" spellcheck="false" ?required=${required}>${initial === undefined ? "" : JSON.stringify(initial)}</textarea>`;
  else if (kind === "string") input = html`<input name=${name} type=${secret ? "password" : "text"} autocomplete="off" .value=${initial ?? ""} ?required=${required && !(schema.minLength === 0)} />`;
  else
    input = html`<input name=${name} type="number" step=${kind === "integer" ? "1" : "any"} min=${schema.minimum ?? nothing}
      max=${schema.maximum ?? nothing} .value=${initial === undefined ? "" : String(initial)} ?required=${required} />`;
  const note = schema?.description ? html`<small>${schema.description}</small>` : nothing;
  const title = `${schema?.title || name}${required ? " *" : ""}`;
  // A label is of one control: several have a group around them.
  if (kind === "several") return html`<fieldset><legend>${title} ${note}</legend>${input}</fieldset>`;
  return html`<label>${title} ${note}${input}</label>`;
}

/** The form's fields, or null where the schema says too little for one. @param {any} schema @param {string[]} secrets */
export function form(schema, secrets = []) {
  const required = new Set(schema?.required ?? []);
  return fieldsOf(schema)?.map(([name, each]) => field(name, each, required.has(name), secrets.includes(name))) ?? null;
}

/**
 * What was filled in. An empty field is left out.
 * @param {HTMLFormElement} element @param {any} schema @returns {Record<string, unknown>}
 */
export function read(element, schema) {
  const data = new FormData(element);
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const [name, each] of fieldsOf(schema) ?? []) {
    const text = String(data.get(name) ?? "");
    const kind = kindOf(each);
    const required = (schema.required ?? []).includes(name);
    if (kind === "several") {
      const chosen = data.getAll(name).map((every) => JSON.parse(String(every)));
      if (chosen.length || required) found[name] = chosen;
      continue;
    }
    if (text === "" && !(kind === "string" && required)) continue;
    if (kind === "string") found[name] = text;
    else
      try {
        found[name] = JSON.parse(text);
      } catch {
        throw new Error(`${name} should be JSON.`);
      }
  }
  return found;
}
